"""Turn a message into one POST, or into why nobody was told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from workbench.errors import SourceError
from workbench.sources.webhook import SECONDS, deliver

__all__ = ["NotTold", "post"]


class NotTold(SourceError):
    """
    A receiver did not take a message.

    `again` is after how many seconds it asks to be tried again, None when it does not say; `unsure` whether it may have taken it all the same.
    """

    def __init__(self, message: str, *, again: float | None = None, unsure: bool = False) -> None:
        super().__init__(message)
        self.again, self.unsure = again, unsure


def post(address: str, document: Mapping[str, Any], headers: Mapping[str, str] | None = None, seconds: float = SECONDS) -> None:
    """
    Post a document and return when the receiver took it.

    Raises
    ------
    NotTold
        It was refused or not answered in time; whether it arrived is not known then. A receiver that answers drop by drop is given up too.
    """
    why = deliver(address, json.dumps(document, ensure_ascii=True, allow_nan=False).encode(), headers, seconds)
    if why is not None:
        raise NotTold(why.said, again=why.again, unsure=why.unsure)
