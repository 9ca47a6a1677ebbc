"""Turn Panel's widgets into ours: one stylesheet for all of them, coloured by the page's CSS variables, and no resource from elsewhere."""

from __future__ import annotations

from typing import Any, ClassVar

from panel.theme.base import Design, Inherit
from panel.viewable import Viewable

__all__ = ["WorkbenchDesign"]


class WorkbenchDesign(Design):
    """The look of all components; light and dark differ only in variables of the page, so that one stylesheet serves both."""

    modifiers: ClassVar[dict[type[Viewable], dict[str, Any]]] = {Viewable: {"stylesheets": [Inherit, "static/widgets.css"]}}
