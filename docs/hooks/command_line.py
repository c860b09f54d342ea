"""The command line reference, read from the parser itself."""

import argparse
import html

from diffusionblocks.cli import _parser
from diffusionblocks.recipes import RECIPES


def reference() -> str:
    """A section a command: usage, arguments, and settings with what they mean. Recipes at the end."""
    (commands,) = [a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction)]
    helps = {choice.dest: choice.help for choice in commands._choices_actions}
    parts = [_command(name, parser, helps.get(name) or "") for name, parser in commands.choices.items()]
    recipes = [f"| `{name}` | {_first_line(recipe.__doc__)} |" for name, recipe in RECIPES.items()]
    return "\n\n".join([*parts, "## Recipes", "\n".join(["| recipe | what it is |", "|---|---|", *recipes])])


def _command(name: str, parser: argparse.ArgumentParser, summary: str) -> str:
    lines = [f"## dblocks {name}", f"{summary[:1].upper()}{summary[1:]}."]
    titles = {"positional arguments": "arguments"}
    for group in parser._action_groups:
        actions = [a for a in group._group_actions if not isinstance(a, argparse._HelpAction)]
        if actions:
            rows = [f"| {_usage(action)} | {_help(action)} |" for action in actions]
            lines += ["\n".join([f"| {titles.get(group.title, group.title)} | |", "|---|---|", *rows])]
    return "\n\n".join(lines)


def _usage(action: argparse.Action) -> str:
    values = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.metavar or action.dest.upper()
    if not action.option_strings:
        return f"`{values}`" + (" ..." if action.nargs == "+" else "")
    return f"`{', '.join(action.option_strings)}{'' if action.nargs == 0 else f' {values}'}`".replace("|", "\\|")


def _help(action: argparse.Action) -> str:
    text = html.escape((action.help or "").replace("%%", "%")).replace("|", "\\|")
    shown = action.default not in (None, False, argparse.SUPPRESS) and "default" not in text
    return f"{text} (default {action.default})".strip() if shown else text


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().splitlines()[0]
