"""The one error that a user's input can cause: a single line that says what was wrong and what to do."""

from typing import Any


class InputError(ValueError):
    """Bad input: which setting, its value, what was expected, what to do.

    The command line prints it as one line and exits with status 2.

    Args:
        setting: name of the setting, argument, file or layer.
        value: the value that was given.
        expected: what would have been accepted.
        todo: what the user can do about it (may be empty).
    """

    def __init__(self, setting: str, value: Any, expected: str, todo: str = ""):
        self.setting, self.value, self.expected, self.todo = setting, value, expected, todo
        line = f"{setting}={value!r}: expected {expected}" + (f"; {todo}" if todo else "")
        super().__init__(" ".join(line.split()))


class TrainingError(RuntimeError):
    """Training cannot go on (a loss that is not finite, say); the last good checkpoint is kept, exit status 1."""
