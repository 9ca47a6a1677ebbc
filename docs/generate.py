#!/usr/bin/env python3
"""
Turn the command line and the catalog into reference pages, so that these cannot say something else than the code.

    python docs/generate.py            write the pages
    python docs/generate.py --check    say which are out of date (exit code 1)

Pages: reference/cli.md, exit-codes.md, settings.md, checks.md, catalog.md and schemas.md, the classes in reference/verdict.md, the variables
in postmortems.md, and the verdict in README.md (what `workbench demo` prints).
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ["COLUMNS"] = "100"  # argparse wraps help at the terminal's width
os.environ["NO_COLOR"] = "1"  # and colours it from Python 3.14 on

from workbench import catalog, config, model  # noqa: E402
from workbench.cli import command_names, entry, exits  # noqa: E402
from workbench.report.knowledge import KINDS  # noqa: E402

__all__ = ["pages"]

NOTE = "<!-- Written by docs/generate.py; change the code, then run `make docs`. -->\n"


def cell(text: object) -> str:
    """Return text for a cell of a Markdown table."""
    return re.sub(r"([|<>*`\\])", r"\\\1", " ".join(str(text).split()))


def rows(header: tuple[str, ...], body: list[tuple[object, ...]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in body]) + "\n"


def cli_page() -> str:
    """Return the help of every command, as it is printed."""
    parser = entry.parser_for(None)
    (commands,) = (action for action in parser._actions if action.dest == "command")
    assert commands.choices
    text = (
        f"# The command line\n\n{NOTE}\nExit codes are in [exit-codes.md](exit-codes.md), the JSON in [verdict.md](verdict.md).\n"
    )
    pages = {"workbench": parser, **{f"workbench {name}": commands.choices[name] for name in command_names()}}
    for title, page in pages.items():
        page.epilog = None
        # how argparse lays out usage and choices differs between Python versions; the options and their words do not
        text += f"\n## {title}\n\n{cell(page.description)}\n\n"
        text += rows(
            ("argument", "meaning"), [(_names(action), cell(action.help or "")) for action in page._actions if action.help]
        )
    return text


def _names(action: object) -> str:
    options = list(getattr(action, "option_strings", []))
    value = getattr(action, "metavar", None) or ("|".join(action.choices) if getattr(action, "choices", None) else "")  # type: ignore[attr-defined]
    shown = ", ".join(options) if options else ""
    return "`" + f"{shown} {value}".strip().replace("|", "\\|") + "`"


def exits_page() -> str:
    """Return the exit codes."""
    body: list[tuple[object, ...]] = [(code, cell(meaning)) for code, meaning in exits.EXITS.items()]
    return (
        f"# Exit codes\n\n{NOTE}\n{rows(('code', 'meaning'), body)}\n"
        "With several paths the code is that of the worst: "
        + ", ".join(str(code) for code in exits._BY_WEIGHT)
        + ", from worst to best. A verdict is printed for every path all the same.\n"
    )


def settings_page() -> str:
    """Return every setting."""
    kinds = {
        "time": "time: `30s`, `5m`, `6h`", "size": "size: `512MiB`", "words": "list of texts", "table": "table of texts",
        "secret": "secret", "flag": "`true`, `false`",
    }  # fmt: skip
    body: list[tuple[object, ...]] = []
    defaults = {key: value for key, value, _ in config.defaults().shown()}
    for setting in config.SETTINGS:
        names = f"`{setting.variable}`" + "".join(f", `{name}`" for name in setting.exported)
        shown = defaults[setting.key]
        body.append((f"`{setting.key}`", kinds.get(setting.kind, setting.kind), cell(shown), names, cell(setting.meaning)))
    return (
        f"# Settings\n\n{NOTE}\n`workbench config show` prints the values that hold and where each comes from. A flag decides before the\n"
        "environment, that before a profile of the file, that before the file. A secret stands in a file that `KEY_file` (or the variable\n"
        "with `_FILE`) names, or in the environment.\n\n" + rows(("setting", "kind", "default", "environment", "meaning"), body)
    )


def classes_block() -> str:
    """Return the classes and what belongs in each."""
    return rows(("class", "what belongs in it"), [(f"`{name}`", cell(meaning)) for name, meaning in model.CLASSES.items()])


def catalog_page() -> str:
    """Return every signature, class and condition, and what the other tables hold."""
    text = f"""# The catalog

{NOTE}
Knowledge is data: tables in `workbench/catalog/`, each row with its source and date. `workbench explain WORD` prints a row whole.
A site's own rows override ours: put `signatures*.csv` with the same columns into a folder and name it with `--catalog DIR` or
`WORKBENCH_CATALOG`; a verdict's `decided_by` names the file and row that decided.

## Tables

"""
    files = sorted(file for file in catalog.HERE.glob("*.csv") if not file.stem.startswith("signatures"))
    words = {table: f"`workbench explain {kind}:…`" for kind, (table, *_) in KINDS.items()}
    text += rows(
        ("table", "rows", "look up with"),
        [(f"`{file.name}`", len(catalog.table(file.stem)), words.get(file.stem, "")) for file in files],
    )
    text += "\n## Columns of a signature\n\n" + rows(
        ("column", "meaning"),
        [
            ("`id`", "its name in evidence"),
            ("`pattern`", "regular expression (no look-around, no back-references); empty: found by structure"),
            ("`layer`", "where it is seen"),
            ("`role`", "`cause`, `symptom` (never anchors a verdict that something earlier explains), `context` or `counter`"),
            ("`class`", "the class it speaks for"),
            ("`weight`", "0 to 1: how surely one such observation alone means the class"),
            ("`scope`, `at_fault`", "what it speaks about; what is to blame"),
            ("`retry`, `remediation`", "advice, where it differs from the class's"),
            ("`meaning`, `example`", "in our words; one real line"),
            (
                "`source`, `evidence`, `date`",
                "where that is known from, of which kind (source, doc, issue, recall), when it was looked up",
            ),
        ],
    )
    areas: dict[str, list[catalog.Signature]] = {}
    for row in catalog.signatures().values():
        areas.setdefault(row.origin.split(":")[0], []).append(row)
    for area, members in sorted(areas.items()):
        text += f"\n## {area}\n\n"
        text += rows(
            ("signature", "role", "class", "weight", "meaning"),
            [
                (f"`{row.id}`", row.role, f"`{row.cls}`", f"{row.weight:g}", cell(row.meaning))
                for row in sorted(members, key=lambda row: row.id)
            ],
        )
    return text


def checks_page() -> str:
    """Return every check of a node: when it runs, what it looks at in which ways, what makes it unknown, and what it can find."""
    from workbench.catalog.findings import findings_table
    from workbench.catalog.skus import skus
    from workbench.health import CONTEXTS, checks
    from workbench.sources.node.readers import all_readers

    known, readers, findings = checks(), all_readers(), findings_table()
    text = (
        f"# The checks of a node\n\n{NOTE}\nA check is `unknown` when none of the ways of a reading that it needs gives an answer: the tool "
        "is missing, may not be run, fails, hangs, or prints nothing, garbage or half of it. It is `not-applicable` when the node has no "
        "such thing, which must be seen, or when the site asks for nothing. A required check that is critical or unknown makes the node "
        "unfit; [health.md](../health.md) says how a site changes which are.\n\n## When each runs\n\n"
    )
    body: list[tuple[object, ...]] = []
    for one in sorted(known.values(), key=lambda one: one.id):
        when = ["yes" if word in one.contexts else "–" for word in CONTEXTS]
        required = (
            "yes"
            if one.required
            else "with " + ", ".join(f"`{word}`" for word in one.required_when)
            if one.required_when
            else "no"
        )
        body.append((f"[{one.id}](#{one.id})", cell(one.title), *when, required))
    text += rows(("check", "asks whether", *CONTEXTS, "required"), body)
    text += "\n## What products have\n\nA product without a thing has its check not apply; "
    text += "one that the catalog does not know is judged by what its driver says.\n\n"
    products: list[tuple[object, ...]] = []
    for sku in sorted(skus(), key=lambda sku: sku.product):
        words = ("yes" if has else "–" for has in (sku.ecc, sku.row_remap, sku.fabric, sku.mig))
        ecc, remap, fabric, mig = words
        links = "?" if sku.nvlinks is None else sku.nvlinks or "–"
        bus = f"gen {sku.pcie_generation or '?'} x{sku.pcie_width or '?'}"
        products.append((cell(sku.product), cell(sku.architecture), ecc, remap, links, fabric, mig, bus))
    text += rows(
        ("product", "architecture", "gpu-memory: ECC", "row remapping", "nvlink: links", "fabric", "modes: MIG", "pcie"), products
    )
    for one in sorted(known.values(), key=lambda one: one.id):
        text += f"\n## {one.id}\n\nWhether {cell(one.title)}."
        text += f" Looks for `{one.cls}`." if one.cls else ""
        text += f" Only when `{one.switch}` is set." if one.switch else ""
        text += "\n\n"
        for name in (*one.needs, *one.wants):
            reader = readers[name]
            ways = ", else ".join(
                cell(way.name) + (f" (cannot show {cell(', '.join(way.blind))})" if way.blind else "") for way in reader.ways
            )
            role = "unknown without" if name in one.needs else "uses, when there"
            text += f"- {role} **{name}**, {cell(reader.about)}: {ways}; at most {reader.seconds:g} s\n"
        mine = [row for row in findings.values() if row.check == one.id]
        if mine:
            text += "\n" + rows(
                ("finding", "status", "class", "action", "meaning"),
                [(f"`{row.code}`", row.status, row.cls, row.action, cell(row.meaning)) for row in mine],
            )
    return text


def schemas_page() -> str:
    """Return every published schema with its fields."""
    from workbench.report.schemas import SCHEMAS, schema

    text = (
        f"# Schemas\n\n{NOTE}\n`workbench schema NAME` prints one (JSON Schema 2020-12). Fields may be added, none is renamed or left "
        "out within a version. Text that comes from logs is hostile: escape it where it is shown.\n\n"
    )
    text += rows(
        ("schema", "printed by", "what it is"),
        [(f"[{name}](#{name})", f"`{by}`", cell(schema(name)["description"])) for name, by in SCHEMAS.items()],
    )
    for name in SCHEMAS:
        made = schema(name)
        text += f"\n## {name}\n\n"
        for part, body in [("", made), *made.get("$defs", {}).items()]:
            if "properties" not in body or part == "gpu":
                continue
            text += f"\n### {name}: {part}\n\n" if part else ""
            fields: list[tuple[object, ...]] = []
            for key, value in body["properties"].items():
                always = "yes" if key in body.get("required", ()) else "when it applies"
                fields.append((f"`{key}`", _kind(value), always, cell(value.get("description", ""))))
            text += rows(("field", "type", "there", "meaning"), fields)
    return text


def _kind(value: dict[str, object]) -> str:
    """Return a field's type in words."""
    names = {
        "string": "text",
        "integer": "number",
        "boolean": "yes or no",
        "array": "list",
        "object": "object",
        "null": "null",
        "number": "number",
    }
    if "const" in value:
        return f"`{value['const']}`"
    if isinstance(allowed := value.get("enum"), list):
        shown = [f"`{one}`" if one else "empty" if one == "" else "null" for one in allowed]
        return ", ".join(shown) if len(shown) <= 9 else "one of a closed list"
    if "$ref" in value:
        return str(value["$ref"]).rsplit("/", 1)[-1]
    if isinstance(several := value.get("oneOf"), list):
        return " or ".join(_kind(one) for one in several)
    kinds = value.get("type", "any")
    inner = value.get("items")
    of = f" of {_kind(inner)}" if kinds == "array" and isinstance(inner, dict) else ""
    return " or ".join(names.get(str(kind), str(kind)) for kind in (kinds if isinstance(kinds, list) else [kinds])) + of


def variables_block() -> str:
    """Return what a template of a postmortem may use."""
    from workbench.report.facts import VARIABLES

    return rows(("variable", "what it holds"), [(f"`{name}`", cell(meaning)) for name, meaning in VARIABLES.items()])


def demo_block() -> str:
    """Return the first part of what `workbench demo` prints: the answer, what to do, and the best evidence."""
    from workbench.cli.demo import DEFAULT
    from workbench.report.terminal import render
    from workbench.report.verdict_json import to_json
    from workbench.shipped import load_example

    incident = load_example(DEFAULT)
    lines = render(to_json(incident.triage(), name=incident.name)).splitlines()
    place = next((number for number, line in enumerate(lines) if line.startswith("Evidence")), len(lines))
    return "```text\n$ workbench demo\n" + "\n".join(lines[: place + 7]) + "\n…\n```\n"


def pages() -> dict[Path, str]:
    """Return path → text of every generated page."""
    readme = HERE.parent / "README.md"
    shown = re.compile(r"(<!-- demo -->\n).*?(<!-- /demo -->)", re.DOTALL)
    demo = demo_block()
    verdict = HERE / "reference" / "verdict.md"
    mark = re.compile(r"(<!-- classes -->\n).*?(<!-- /classes -->)", re.DOTALL)
    block = classes_block()
    postmortems = HERE / "postmortems.md"
    place = re.compile(r"(<!-- variables -->\n).*?(<!-- /variables -->)", re.DOTALL)
    variables = variables_block()
    return {
        HERE / "reference" / "cli.md": cli_page(),
        HERE / "reference" / "exit-codes.md": exits_page(),
        HERE / "reference" / "settings.md": settings_page(),
        HERE / "reference" / "checks.md": checks_page(),
        HERE / "reference" / "catalog.md": catalog_page(),
        HERE / "reference" / "schemas.md": schemas_page(),
        postmortems: place.sub(lambda match: match[1] + variables + match[2], postmortems.read_text(encoding="utf-8")),
        readme: shown.sub(lambda match: match[1] + demo + match[2], readme.read_text(encoding="utf-8")),
        verdict: mark.sub(lambda match: match[1] + block + match[2], verdict.read_text(encoding="utf-8")),
    }


def main() -> int:
    """Write the pages, or check them."""
    check = "--check" in sys.argv[1:]
    os.environ.pop("WORKBENCH_CATALOG", None)
    made = pages()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{'out of date' if check else 'written'}: {path.relative_to(HERE.parent)}")
        if not check:
            path.write_text(made[path], encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
