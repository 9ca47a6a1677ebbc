"""Turn escaped HTML into a part of a page whose buttons and links talk to Python, copy text and tell local time on hover."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import param
from panel.reactive import ReactiveHTML

from workbench.views.markup import css

__all__ = ["Surface"]

# What the browser does for every surface. `data-go` asks Python for something, `data-copy`/`data-copy-of`/`data-link` put text on the
# clipboard, a form sends its fields. Text of logs arrives escaped and is never looked at by this script. It is a script of ReactiveHTML
# (made by `new Function`, as BokehJS's own) rather than a module, which would need `blob:` in the page's policy and a loader in notebooks.
_RENDER = """
const local = stamp => {
  const when = new Date(stamp)
  return isNaN(when) ? '' : when.toLocaleString([], {dateStyle: 'medium', timeStyle: 'long'}) + ' (local)'
}
const TIME = /^\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d(\\.\\d+)?( UTC)?$/
const hover = event => {
  for (const node of event.composedPath()) {
    if (!(node instanceof Element)) continue
    if (node.matches('time[datetime]')) { if (!node.title) node.title = local(node.getAttribute('datetime')); return }
    if (node.matches('.tabulator-cell')) {
      const said = node.textContent.trim()
      if (TIME.test(said)) node.title = local(said.replace(' UTC', '').replace(' ', 'T') + 'Z')
      return
    }
  }
}
const put = async text => {
  try { await navigator.clipboard.writeText(text); return } catch (refused) { /* no secure context: the old way */ }
  const area = document.createElement('textarea')
  area.value = text; area.style.position = 'fixed'; area.style.opacity = '0'
  document.body.append(area); area.select(); document.execCommand('copy'); area.remove()
}
const told = async (node, text) => {
  await put(text)
  if (node.dataset.was === undefined) node.dataset.was = node.textContent
  node.textContent = 'Copied'; node.classList.add('done')
  setTimeout(() => {
    if (node.dataset.was !== undefined) node.textContent = node.dataset.was
    delete node.dataset.was; node.classList.remove('done')
  }, 1200)
}
const find = (event, selector) => event.composedPath().find(node => node instanceof Element && node.matches(selector))
let count = 0
const ask = text => { data.asked = JSON.stringify([Date.now() + '.' + count++, text]) }
const click = event => {
  if (event.wbSeen || event.ctrlKey || event.metaKey || event.shiftKey) return
  const copied = find(event, '[data-copy],[data-copy-of],[data-link]')
  if (copied) {
    event.wbSeen = true; event.preventDefault()
    if (copied.dataset.link !== undefined) told(copied, new URL(copied.dataset.link, location.href).href)
    else if (copied.dataset.copyOf) {
      const shown = [...copied.getRootNode().querySelectorAll(copied.dataset.copyOf)]
      told(copied, shown.map(node => node.textContent).join('\\n'))
    }
    else told(copied, copied.dataset.copy)
    return
  }
  const asked = find(event, '[data-go]')
  if (asked) { event.wbSeen = true; event.preventDefault(); ask(asked.dataset.go) }
}
const submit = event => {
  const form = find(event, 'form')
  if (form) { event.preventDefault(); ask(new URLSearchParams(new FormData(form)).toString()) }
}
const change = event => { const field = find(event, '[data-now]'); if (field) field.form.requestSubmit() }
const keys = event => {
  const pane = find(event, '[data-scroll]')
  if (!pane || find(event, 'input,select,textarea')) return
  const verb = {n: 'next', p: 'previous'}[event.key]
  const button = verb && pane.getRootNode().querySelector(`[data-key=${verb}]`)
  if (button) { event.preventDefault(); button.click() }
}
box.addEventListener('click', click); box.addEventListener('submit', submit)
box.addEventListener('change', change); box.addEventListener('keydown', keys)
box.addEventListener('pointerover', hover); box.addEventListener('focusin', hover)
if (data.bridge) {
  // the parts of the page that no surface made: the card that the server sent first, the cells of tables
  state.mine = event => { if (find(event, '[data-wb]')?.dataset.wb === data.bridge) click(event) }
  state.hover = hover
  document.addEventListener('click', state.mine); document.addEventListener('pointerover', state.hover)
}
state.paint = first => {
  const held = box.getRootNode().activeElement?.dataset?.go
  const key = box.querySelector('[data-scroll]')?.dataset.scroll, top = box.querySelector('[data-scroll]')?.scrollTop
  box.className = 'wb ' + data.look
  box.innerHTML = data.sent.length ? data.sent[0] : ''
  const pane = box.querySelector('[data-scroll]')
  if (pane) {
    const here = pane.querySelector('[data-here]')
    if (pane.dataset.scroll === key) pane.scrollTop = top
    else if (here) requestAnimationFrame(() => { pane.scrollTop = Math.max(0, here.offsetTop - pane.clientHeight / 3) })
  }
  if (held && !first) [...box.querySelectorAll('[data-go]')].find(node => node.dataset.go === held)?.focus()
}
state.paint(true)
if (data.keys) {
  // Tabulator's rows and headings cannot be reached by keyboard: they get a place in the order of tabs, and Enter the meaning of a click
  const reach = root => {
    for (const row of root.querySelectorAll('.tabulator-row:not([tabindex])')) row.tabIndex = 0
    for (const head of root.querySelectorAll('.tabulator-col[role=columnheader]:not([tabindex])')) head.tabIndex = 0
  }
  const press = event => {
    const row = event.target.closest('.tabulator-row,.tabulator-col[role=columnheader]')
    if (!row || event.target.matches('input')) return
    if (event.key === 'Enter' || event.key === ' ') {
      // a hidden cell, such as that of the index, tells nobody of its click
      const cells = [...row.querySelectorAll('.tabulator-cell,.tabulator-col-content')]
      event.preventDefault(); (cells.find(cell => cell.offsetParent) ?? cells[0] ?? row).click()
    } else if (event.key === 'ArrowDown') { event.preventDefault(); row.nextElementSibling?.focus() }
    else if (event.key === 'ArrowUp') { event.preventDefault(); row.previousElementSibling?.focus() }
  }
  state.seen = []
  const dress = () => {
    const bar = box.getRootNode().host?.getRootNode()?.host, around = bar?.parentNode
    for (const node of around ? [...around.children].filter(node => node.shadowRoot?.querySelector('.tabulator')) : []) {
      const root = node.shadowRoot
      if (root.wbKeys) continue
      root.wbKeys = new MutationObserver(() => reach(root))
      root.wbKeys.observe(root, {childList: true, subtree: true}); state.seen.push(root.wbKeys)
      root.addEventListener('keydown', press); reach(root)
    }
  }
  // a table is drawn when its script has come, and drawn anew when the page wants it: looked for all the time that it may be there
  state.look = setInterval(dress, 500)
}
"""
_REMOVE = """
clearInterval(state.look)
for (const one of state.seen ?? []) one.disconnect()
if (state.mine) { document.removeEventListener('click', state.mine); document.removeEventListener('pointerover', state.hover) }
"""


class Surface(ReactiveHTML):
    """
    A piece of escaped HTML in the page.

    Parameters
    ----------
    html : str
        What is shown, made by `workbench.views.markup.render`: nothing in it may be unescaped text.
    look : str
        Class names of the box.
    bridge : str
        Name of a view (``data-wb`` in the page): clicks on its parts outside this component are heard as well.
    heard : callable
        Called with what was asked for: a query such as ``rank=20``.
    """

    sent = param.List(
        default=[], item_type=str, doc="The HTML, in a list: Panel passes texts through a sanitizer that takes classes away."
    )
    look = param.String(default="")
    bridge = param.String(default="")
    keys = param.Boolean(default=False, doc="Give the table below the row that this stands in its keyboard.")
    asked = param.String(default="", doc="What the browser asked for last: [which, what] as JSON.")

    _debounce: ClassVar[int] = 1  # ms; Panel waits 50 for a burst of typing, and here are clicks only
    _template: ClassVar[str] = '<div id="box" class="wb"></div>'
    _scripts: ClassVar[dict[str, str]] = {
        "render": _RENDER, "sent": "state.paint(false)", "remove": _REMOVE,
    }  # fmt: skip

    def __init__(self, html: str = "", *, heard: Callable[[str], None] | None = None, **params: Any) -> None:
        sheets = [css(), *params.pop("stylesheets", [])]
        params.setdefault("sizing_mode", "stretch_width")
        super().__init__(sent=[html], stylesheets=sheets, **params)
        self._heard = heard
        self.param.watch(self._told, "asked")

    @property
    def html(self) -> str:
        """What is shown."""
        return str(self.sent[0]) if self.sent else ""

    @html.setter
    def html(self, value: str) -> None:
        if value != self.html:
            self.sent = [value]

    def _told(self, event: Any) -> None:
        # what a browser sends is not trusted: a text of modest length, or nothing
        try:
            _, wanted = json.loads(event.new[:20_000])
        except (ValueError, TypeError, RecursionError):
            return
        if self._heard is not None and isinstance(wanted, str):
            self._heard(wanted)
