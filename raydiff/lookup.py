"""Doors: whatever is chosen by name is an entry of a `Door`, or `module:name`, which is imported and checked.

The lowest layer: it imports nothing of raydiff.
"""

import contextlib
import dataclasses
import difflib
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from importlib import import_module
from typing import Any, TypeVar

from pydantic_core import core_schema

T = TypeVar("T", covariant=True)
PACKAGES = set[str]()
"""Top-level packages of `module:name`s that this process has imported."""
ALLOWED: ContextVar[frozenset[str] | None] = ContextVar("ALLOWED", default=None)
"""Top-level packages that a `module:name` may be imported from; None: all. Set by `allowed_packages`."""
NAMES = dict[type, str]()
"""Class -> its name in a door, where that is not the class's own name."""
MOST_KINDS = 8  # of problems that one message tells
LONGEST = 300  # characters shown of an error of outside code
OUTSIDE = re.compile(r"\w+(\.\w+)*:\w+")
"""`module:name`, such as mylab.ditto:Ditto."""


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean x?`, or "" where none of the names is similar."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def is_outside(name: str) -> bool:
    """Whether the name is `module:name`."""
    return OUTSIDE.fullmatch(name) is not None


def bare_name(name: str) -> str:
    """The part after the module: `vendi` of `mylab.metrics:vendi`."""
    return name.rpartition(":")[2]


@contextlib.contextmanager
def allowed_packages(packages: Iterable[str]) -> Iterator[None]:
    """Within it `module:name` is refused unless its top-level package is one of these.

    A name that is stored in a folder is code that runs: read folders of other people within `allowed_packages(())`. It
    holds for this thread, and for others that run in a copy of its context: no other thread may read experiments.
    """
    before = ALLOWED.set(frozenset(packages))
    try:
        yield
    finally:
        ALLOWED.reset(before)


def packages_in(text: str) -> set[str]:
    """Return the top-level packages of all `module:name`s that are words of a command, or quoted in TOML or JSON."""
    words = re.split(r"""["'=,\s]""", text)
    return {word.partition(":")[0].partition(".")[0] for word in words if is_outside(word)}


def imported(name: str) -> Any:
    """Import `module:name`. Raises ValueError, in one sentence, where that fails or is not allowed."""
    path, _, attribute = name.partition(":")
    package = path.partition(".")[0]
    allowed = ALLOWED.get()
    if allowed is not None and package not in {*allowed, "raydiff"}:
        raise ValueError(
            f"{name} is code of the package {package}, which this call does not name: if you know who wrote it, name "
            f"the package: --trust {package}, or trust=[{package!r}] in Python"
        )
    PACKAGES.add(package)
    try:
        module = import_module(path)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # A user's module may fail in any way, and may exit.
        raise ValueError(f"{name} cannot be imported: {describe_error(e)}") from e
    if not hasattr(module, attribute):
        raise ValueError(f"{name} cannot be imported: {path} has no {attribute}{nearest(attribute, vars(module))}")
    return getattr(module, attribute)


def plug_in_error(error: BaseException, *modules: str) -> str:
    """The first function of outside code that the error passed through, with its type and message in one line.

    Outside is what was `imported`, and these modules. "" where there is none, and for errors of raydiff and Ray.
    """
    packages = (PACKAGES | {module.partition(".")[0] for module in modules}) - {"raydiff"}
    if type(error).__module__.startswith(("raydiff.", "ray.")):
        return ""
    for e in filter(None, (error, error.__cause__)):  # Generators raise RuntimeError from StopIteration.
        for frame, _ in traceback.walk_tb(e.__traceback__):
            module = str(frame.f_globals.get("__name__"))
            if module.partition(".")[0] in packages:
                return f"{module}.{frame.f_code.co_qualname} raised {describe_error(e)}"
    return ""


def describe_error(error: BaseException) -> str:
    """Return type and message in one printable line of at most LONGEST characters."""
    text = traceback.format_exception_only(error)[-1][:LONGEST]
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


class Door(Mapping[str, T]):
    """What may be chosen by a name: entries by name, or `module:name` of another package, checked once it is imported.

    An entry is an object, or its own "module:name", imported on access: so the core lists what it does not import. As
    an annotation, `network: Annotated[Network, NETWORKS]` takes instances, `metrics: tuple[Annotated[str, METRICS],
    ...]` names. A door is read-only; `entries` is public for tests.

    Args:
        what: What an entry is, for messages: "network".
        entries: Name -> entry, in the order in which it is listed.
        base: The class or Protocol of settings classes: frozen dataclasses whose fields all have a default. None:
            entries are functions or other objects.
        check: Raises ValueError for an object from outside that does not fit, before anything of it is called.
    """

    def __init__(
        self,
        what: str,
        entries: Mapping[str, T | str],
        *,
        base: type | None = None,
        check: Callable[[Any], None] | None = None,
    ) -> None:
        self.what = what
        self.entries = dict(entries)
        self.base = base
        self.check = check
        for name, entry in entries.items():
            if isinstance(entry, type) and plain_name(entry.__name__) != plain_name(name):
                NAMES[entry] = name

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> T:
        entry: Any = self.entries[name]
        found: T = imported(entry) if isinstance(entry, str) else entry
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def resolve(self, name: str) -> T:
        """Return the entry of this name, in any case and with or without hyphens, or the checked object `module:name`.

        Raises ValueError where there is none, where it cannot be imported, does not fit, or has the name of an entry.
        """
        if is_outside(name):
            found: T = self._checked(name, imported(name))
            return found
        names = {plain_name(known): known for known in self.entries}
        known = names.get(plain_name(name))
        if known is None:
            raise ValueError(f"must be {self.choices}, got {name!r}{nearest(plain_name(name), names)}")
        return self[known]

    @property
    def choices(self) -> str:
        """Its names in one line, for messages."""
        return f"one of {', '.join(self.entries)}, or module:name of another"

    def _checked(self, name: str, obj: Any) -> Any:
        if self.base is not None and (why := unfit(obj, self.base)):
            raise ValueError(f"{name} is no {self.what}: {why}")
        if self.base is None and self.check is None and not callable(obj):
            raise ValueError(f"{name} is no {self.what}: it must be a function")
        if self.check is not None:
            try:
                self.check(obj)
            except ValueError as e:
                raise ValueError(f"{name} is no {self.what}: {e}") from None
        names = {plain_name(known) for known in self.entries}
        if names & {plain_name(bare_name(name)), plain_name(getattr(obj, "__name__", ""))}:
            raise ValueError(f"{name} has the name of a {self.what} of raydiff: give it another name")
        return obj

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        check = self._check_name if source is str else self._check_instance
        return core_schema.no_info_plain_validator_function(check)

    def _check_name(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"must be {self.choices}, got {value!r}")
        self.resolve(value)
        return value

    def _check_instance(self, value: Any) -> Any:
        assert self.base is not None, f"the door of {self.what} has no base class"
        if isinstance(value, type):
            raise ValueError(f"must be an instance, got the class {value.__name__}: write {value.__name__}()")
        if why := unfit(type(value), self.base):
            shown = " ".join(repr(value).split())[:LONGEST]
            raise ValueError(f"must be an instance of {self.choices}, got {shown}: {why}")
        return value


def resolve(field: str, door: Door[T], name: str) -> T:
    """`door.resolve`, with the field's name in what it raises."""
    try:
        return door.resolve(name)
    except ValueError as e:
        raise ValueError(f"{field} {e}" if str(e).startswith("must") else str(e)) from None


def takes(*names: str) -> Callable[[Any], None]:
    """Return the check of a door of functions: ValueError unless the parameters have these names. Nothing is called."""

    def check(function: Any) -> None:
        try:
            parameters = [] if isinstance(function, type) else [*inspect.signature(function).parameters]
        except (TypeError, ValueError):  # no function, or one of a library in C
            parameters = []
        if parameters != [*names]:
            raise ValueError(f"it must be a function of ({', '.join(names)})")

    return check


def plain_name(name: str) -> str:
    """The name in lower case, without hyphens and underscores: fedavg of FedAvg and fed-avg."""
    return name.lower().replace("_", "").replace("-", "")


def name_on_disk(obj: Any) -> str:
    """Return the name of a class or function of raydiff, in its door if it has one there, else its `module:name`.

    Raises ValueError where no other process could import it.
    """
    name: str = obj.__name__
    module: str = obj.__module__
    if module.startswith("raydiff."):
        return NAMES.get(obj, name)
    if module == "__main__" or "." in obj.__qualname__:
        raise ValueError(f"{name} must be in a module that workers can import, at its top level")
    return f"{module}:{name}"


def unfit(cls: Any, base: type) -> str:
    """Why a class is no settings class of this base class or Protocol; "" where it is one. Nothing is called."""
    dataclass: Any = getattr(cls, "__dataclass_params__", None)
    if not (isinstance(cls, type) and dataclass is not None and dataclass.frozen):
        return f"it must be a frozen dataclass with the members of {base.__module__}.{base.__name__}"
    fields = dataclasses.fields(cls)
    needed = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    if needed:
        return f"its field {needed[0]} must have a default"
    if not getattr(base, "_is_protocol", False):
        return "" if issubclass(cls, base) else f"it must be a subclass of {base.__module__}.{base.__name__}"
    names = {f.name for f in fields}
    missing = [member for member in members(base) if not (member in names or hasattr(cls, member))]
    return f"it has no {', '.join(missing)}" if missing else ""


def members(protocol: type) -> list[str]:
    """Names of the public members of a Protocol and of those that it extends, in the order of the source."""
    names: list[str] = []
    for cls in reversed(protocol.__mro__):
        if getattr(cls, "_is_protocol", False):
            names += [*vars(cls).get("__annotations__", {}), *vars(cls)]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def refuse(problems: Mapping[str, Sequence[str]]) -> None:
    """Raises ValueError if there are problems, by kind: the first of each kind, and how many more it has."""
    texts = [first + (f" (and {len(more)} more)" if more else "") for first, *more in problems.values()]
    if len(texts) > MOST_KINDS:
        texts[MOST_KINDS:] = [f"{len(texts) - MOST_KINDS} other problems"]
    if texts:
        raise ValueError("; also ".join(texts))


def check_one_of(field: str, value: object, allowed: Iterable[str]) -> None:
    """Raises ValueError naming the field unless its value is one of these."""
    if value not in (allowed := tuple(allowed)):
        raise ValueError(f"{field} must be one of {', '.join(allowed)}, got {value!r}")


def check_value(field: str, value: object, ok: bool, wanted: str) -> None:
    """Raises ValueError naming the field, what it takes and its value, unless `ok`."""
    if not ok:
        raise ValueError(f"{field} must be {wanted}, got {value}")


def entries(field: str, door: Door[T], names: Iterable[str]) -> dict[str, T]:
    """Return the entries of a door of these names by `bare_name`.

    Raises ValueError naming the field where a name has none, and where two have the same.
    """
    functions: dict[str, T] = {}
    for name in names:
        short = bare_name(name)
        if short in functions:
            raise ValueError(f"{field} must have different names, and {name} is called {short} like another")
        functions[short] = resolve(field, door, name)
    return functions


def distinguishing_fields(settings: Sequence[Mapping[str, Any]], fields: Iterable[str]) -> list[str]:
    """The fields, from the first on, that are needed to tell the settings apart."""
    chosen = list[str]()
    groups = 1
    for name in fields:
        more = len({repr([setting.get(k) for k in (*chosen, name)]) for setting in settings})
        if more > groups:
            chosen = [*chosen, name]
            groups = more
    return chosen
