"""Turn the progress lines of training and serving frameworks into step, seconds a step and loss."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Step", "step_of"]


@dataclass(frozen=True, slots=True)
class Step:
    """One progress line; what it does not say is None."""

    step: int | None = None
    total: int | None = None
    seconds: float | None = None  # for one step
    loss: float | None = None  # NaN and infinity as such
    epoch: float | None = None
    kind: str = "step"  # step | bar | throughput | serving (a server came up, or answered)
    norm: float | None = None  # of the gradients; NaN and infinity as such


# A line without any of these words is no progress, one without a word of the second line says nothing of a server. Looked for one
# by one they are found ten times faster than by one expression.
_STEPS = ("step", "iter", "oss", "poch", "it/s", "s/it", "throughput", "atch", "Step", "Iter")
_SERVERS = (
    " HTTP/", "startup complete", "fired up", "running on http", "Service at ", "successfully loaded", "ebserver", "Connected",
    "Starting server", "Serving revision", "Deployed",
)  # fmt: skip
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|[Nn]a[Nn]|NAN|[-+]?[Ii]nf(?:inity)?|INF)"
# step=5 | step 9344/30000 | 'step': 12 | steps: 10 | global_step: 5 | iteration       48/      50 | Iter 10 | Batch 0, Loss: nan
_STEP = re.compile(
    r"(?:^|[\s|\[({,'\"])(?:global[_ ]?|train(?:ing)?[_ ]|optimizer[_ ])?(?:[Ss]teps?|[Ii]ter(?:ation)?s?|[Bb]atch)"
    r"['\"]?\s*[:=]?\s*\[?\s*(\d+)(?:\s*(?:/|of)\s*(\d+))?(?![\w.]*%)"
)
# loss 2.3470 | loss=6.3184 | 'loss': 1.2 | lm loss: 8.317189E-02 | reduced_train_loss: 11.03 | Loss 1.2 (1.3)
_LOSS = re.compile(
    rf"(?:^|[\s|\[({{,'\"_/])(?:loss|Loss|LOSS)['\"]?\s*(?:[:=]|is\b|\s)\s*(?:tensor\()?({_NUMBER})(?![\w/]|\.[A-Za-z])"
)
# step_ms=227 | elapsed time per iteration (ms): 7138.7 | step 7.05s | iter time (s): 0.5 | train_step_timing in s: 7.1 | Time 0.3
_MS = re.compile(r"(?:step_ms|iter(?:ation)?_ms|step[_ ]time[_ ]?\(?ms\)?|per iteration \(ms\))['\"]?\s*[:=]?\s*([\d.]+)")
_SEC = re.compile(
    r"(?:\bstep (?=[\d.]+ ?s\b)|(?:step|iter(?:ation)?)[_ ]time(?: \(s\))?\s*[:=]\s*|train_step_timing in s\s*[:=]\s*"
    r"|Step Time\s*:\s*|sec/step\s*[:=]\s*|time/step\s*[:=]\s*)([\d.]+)"
)
#  18%|█▊        | 71/400 [00:04<00:15, 21.44it/s, loss=2.3]
_BAR = re.compile(r"(\d+)%\|[^|]{0,300}\|\s*(\d+)/(\d+)\s*\[[\d:]+<[^,\]]*,\s*([\d.]+)?\??\s*(it/s|s/it)")
# 71it [00:04, 21.44it/s, loss=2.3] of a loader whose length is not known
_COUNT = re.compile(r"(?:^|[\s\r])(\d+)it \[[\d:]+,\s*([\d.]+)?\??\s*(it/s|s/it)")
# DeepSpeed: [Rank 0] step=480, skipped=0, lr=[0.00015], mom=[(0.9, 0.95)] (deepspeed/runtime/engine.py, `_report_progress`)
_DEEPSPEED = re.compile(r"\bstep=(\d+), skipped=\d+, lr=\[")
# Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 5.3 tokens/s | gen throughput (token/s): 12.1
_SERVE = re.compile(r"(?:generation|gen|input|prompt) throughput")
_EPOCH = re.compile(r"(?:^|[\s|\[({,'\"])[Ee]poch['\"]?\s*[:=]?\s*\[?\s*(\d+(?:\.\d+)?)")
# Epoch: [0][ 10/100]
# Epoch(train) [100][3200/4309] (MMEngine)   |   Epoch [1][50/7330] (MMCV)
_TORCHVISION = re.compile(r"[Ee]poch(?:\(\w+\))?:?\s*\[(\d+)(?:/\d+)?\]\s*\[\s*(\d+)\s*/\s*(\d+)\]")
# Epoch[47] Batch [480]\tSpeed: 328.83 samples/sec (Speedometer of MXNet and its children; newer ones write Batch [460-480])
_SPEEDOMETER = re.compile(r"\bEpoch\[(\d+)\] Batch ?\[(?:\d+-)?(\d+)\]\s+Speed: ")
# Iter(train) [ 50/80000] (MMEngine)   |   Train: 12 [  50/1251 (  4%)] (timm)
_OF_EPOCH = re.compile(r"\b(?:Iter\(\w+\)|Train: \d+) \[\s*(\d+)/(\d+)[\] ]")
#  12/100 [==>...........] - ETA: 1:02 - loss: 0.69   |   12/100 ━━━━━━━━━━ 1:02 12ms/step - loss: 0.69 (Keras 2 and 3)
_KERAS = re.compile(r"(?:^|[\r\x08])\s*(\d+)/(\d+) (?:\[[=>.]{10,}\]|[━ ]{10,})")
# HF Trainer: {'loss': 1.4358, 'grad_norm': 0.9, 'learning_rate': 7e-05, 'epoch': 0.52}
_TRAINER = re.compile(r"\{'(?:loss|train_loss|eval_loss)': ")
# grad norm: nan | 'grad_norm': 0.9 | grad_norm=inf | gnorm 0.21 | l2_norm/grad/global: nan
_NORM = re.compile(rf"(?:grad(?:ient)?[_ ]?norm|\bgnorm|l2_norm/grad/global)['\"]?\s*[:=]?\s*({_NUMBER})(?!\w)")
# A server that came up: uvicorn, SGLang, Triton, TGI, Ray Serve …
_READY = re.compile(
    r"Application startup complete|server is fired up and ready|Uvicorn running on http|Started (?:HTTP|GRPCInference|Metrics )\s?Service at"
    r"|successfully loaded '|text_generation_router\S*: .{0,60}(?:Connected|Serving revision)|Starting webserver|Deployed app "
)
# … or that answered: "POST /v1/completions HTTP/1.1" 200 OK; a health check says nothing of the engine behind it
_ANSWERED = re.compile(
    r"\"(?:GET|POST|PUT) (?!/?(?:health|metrics|ping|ready|live|version|v1/models|v2/health|docs|openapi|favicon)\S*)\S+"
    r" HTTP/[\d.]+\"(?: -)? 2\d\d\b"
)
# Avg generation throughput: 5.3 tokens/s | gen throughput (token/s): 12.1 (more than nothing)
_GENERATES = re.compile(r"gen(?:eration)? throughput(?: \(token/s\))?: (?=[\d.]*[1-9])[\d.]+")


def _float(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def step_of(text: str) -> Step | None:
    """
    Return what a progress line says, or None when the line is none.

    Parameters
    ----------
    text : str
        A line without its prefix; of a carriage-return bar the last state.
    """
    if len(text) > 4000:
        text = text[-2000:]
    serves = _holds(text, _SERVERS)
    if not serves and not _holds(text, _STEPS):
        return None
    if "%|" in text and (bar := _last(_BAR, text)):
        rate = _float(bar[4])
        seconds = None if not rate else (rate if bar[5] == "s/it" else 1.0 / rate)
        found = _LOSS.search(text)
        return Step(int(bar[2]), int(bar[3]), seconds, _float(found[1]) if found else None, kind="bar")
    if "it [" in text and (bar := _last(_COUNT, text)):
        rate = _float(bar[2])
        found = _LOSS.search(text)
        seconds = None if not rate else (rate if bar[3] == "s/it" else 1.0 / rate)
        return Step(int(bar[1]), None, seconds, _float(found[1]) if found else None, kind="bar")
    if ", skipped=" in text and (engine := _DEEPSPEED.search(text)):
        return Step(int(engine[1]))
    if serves and (_READY.search(text) or _ANSWERED.search(text)):
        return Step(kind="serving")
    loss_at = _LOSS.search(text) if "oss" in text or "OSS" in text else None
    loss = _float(loss_at[1]) if loss_at else None
    norm_at = _NORM.search(text) if "norm" in text else None
    norm = _float(norm_at[1]) if norm_at else None
    epochs = "poch" in text
    if epochs and (vision := _TORCHVISION.search(text)):
        return Step(int(vision[2]), int(vision[3]), None, loss, float(vision[1]), norm=norm)
    if epochs and "Speed: " in text and (meter := _SPEEDOMETER.search(text)):
        return Step(int(meter[2]), None, None, loss, float(meter[1]), norm=norm)
    if ("Iter(" in text or "Train: " in text) and (inner := _OF_EPOCH.search(text)):
        return Step(int(inner[1]), int(inner[2]), None, loss, norm=norm)
    if ("[=" in text or "[>" in text or "━" in text) and (bar := _last(_KERAS, text)):
        return Step(int(bar[1]), int(bar[2]), None, loss, kind="bar")
    step_at = _STEP.search(text)
    ms = _MS.search(text) if "ms" in text else None
    sec = None if ms else _SEC.search(text)
    seconds = (_float(ms[1]) or 0.0) / 1000 if ms else _float(sec[1]) if sec else None
    epoch_at = _EPOCH.search(text) if epochs else None
    epoch = _float(epoch_at[1]) if epoch_at else None
    if step_at and (loss is not None or seconds is not None or step_at[2]):
        if text[step_at.end() : step_at.end() + 2].strip() == "s":  # "step 7s" is a duration
            return None
        return Step(int(step_at[1]), int(step_at[2]) if step_at[2] else None, seconds, loss, epoch, norm=norm)
    if ("{'" in text and _TRAINER.search(text)) or (loss is not None and epoch is not None):
        return Step(None, None, seconds, loss, epoch, norm=norm)
    if "throughput" in text:
        if _GENERATES.search(text):
            return Step(kind="serving")
        if _SERVE.search(text):
            return Step(kind="throughput")
    return None


def _holds(text: str, words: tuple[str, ...]) -> bool:
    for word in words:  # noqa: SIM110 - `any` costs four times as much here
        if word in text:
            return True
    return False


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return max(pattern.finditer(text), key=lambda found: found.start(), default=None)
