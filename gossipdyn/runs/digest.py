"""Digests: a name for what a thing holds, functions included, that is equal in every process.

A function holds its code (with the functions within it), its closure, its defaults, its attributes,
and the globals that the code reads, modules imported inside it included. An object holds what it
pickles as, and its class; a class its methods and attributes. A dict holds its order too. Installed
packages and gossipdyn itself are taken by name: environment() tells their state.
"""

import copyreg
import dis
import functools
import hashlib
import importlib.util
import sys
import types
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PLAIN = {type(None): repr, bool: repr, int: hex, float: float.hex, complex: repr, str: ascii}
PLAIN |= {type(...): repr, type(NotImplemented): repr}
# Names in a class that tell nothing about what it does: notes of the interpreter, and docstrings.
NOTES = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__",
    "__static_attributes__", "__slotnames__", "__abstractmethods__", "_abc_impl",
    "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__",
    "__dataclass_fields__", "__dataclass_params__", "__orig_bases__", "__parameters__",
}  # fmt: skip
BUILT_IN = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)
CODE = (
    "co_name", "co_code", "co_exceptiontable", "co_consts", "co_names", "co_varnames",
    "co_freevars", "co_cellvars", "co_flags", "co_argcount", "co_posonlyargcount",
    "co_kwonlyargcount",
)  # fmt: skip


def digest(*things: Any) -> str:
    """Return a hexadecimal name of what the things hold.

    The name is equal in every process, and differs for other contents. Raises ValueError for what
    cannot be told: locks, open files, running generators and the like.
    """
    try:
        return _Walk().of(things).hex()
    except RecursionError as error:
        raise ValueError("what is held is nested too deeply to be told") from error


def alike(a: Any, b: Any) -> bool:
    """Tell whether two things hold the same; False where that cannot be told."""
    try:
        return digest(a) == digest(b)
    except ValueError:
        return False


def same(a: Any, b: Any) -> bool:
    """Whether two records, containers or arrays hold the same."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and np.array_equal(a, b)
    return a is b or bool(a == b) or (callable(a) and callable(b) and alike(a, b))


@functools.cache
def environment() -> str:
    """Return a name of what results depend on: the code of gossipdyn and the packages beneath it.

    Comments and docstrings of gossipdyn do not count.
    """
    here = Path(__file__).parents[1]
    code = {
        path.relative_to(here).as_posix(): compile(path.read_bytes(), "", "exec", optimize=2)
        for path in sorted(here.rglob("*.py"))
    }
    return digest(code, [_version(name) for name in ("numpy", "scipy", "torch")])


def _version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


class _Read(NamedTuple):
    """A module as a function reads it: of its contents only what the code names."""

    module: types.ModuleType
    names: frozenset


class _Walk:
    """One walk through a thing; digests are SHA-256 of a kind and of the digests of the parts."""

    def __init__(self):
        self.known = {}  # id -> (thing, digest); holding the thing keeps its id its own
        self.path = []  # what is being walked through, outermost first

    def of(self, thing):
        """The digest, bytes."""
        if type(thing) in PLAIN:
            return _hash(type(thing).__name__, PLAIN[type(thing)](thing).encode())
        if id(thing) in self.known:
            return self.known[id(thing)][1]
        for steps, outer in enumerate(reversed(self.path)):
            if outer is thing:  # a function that calls itself, a list that holds itself
                return _hash("outer", b"%d" % steps)
        self.path.append(thing)
        kind, parts = self.parts(thing)
        result = _hash(kind, *(p if type(p) is _Hashed else self.of(p) for p in parts))
        self.path.pop()
        self.known[id(thing)] = thing, result
        return result

    def parts(self, thing):
        """What a thing consists of: (kind, list of things)."""
        kind = type(thing)
        if kind is bytes:
            return "bytes", [_hash("bytes", thing)]
        if kind in (tuple, list):
            return kind.__name__, thing
        if kind is dict:
            return "dict", [part for item in thing.items() for part in item]
        if isinstance(thing, set | frozenset):
            return "set", [kind, *sorted(self.of(part) for part in thing)]
        if kind is np.ndarray:
            plain = not thing.dtype.hasobject and thing.dtype.kind != "T"
            return "array", [thing.dtype, thing.shape, thing.tobytes() if plain else thing.tolist()]
        if kind is np.ma.MaskedArray:
            return "masked array", [thing.data, np.ma.getmaskarray(thing), thing.fill_value]
        if "torch" in sys.modules and isinstance(thing, sys.modules["torch"].Tensor):
            return "tensor", [kind, *self.tensor(thing)]
        if kind is _Read or kind is types.ModuleType:
            return "module", self.module(thing)
        if kind is types.FunctionType:
            return "function", [_place(thing)] if _installed(thing) else _function(thing)
        if kind is types.CodeType:
            return "code", [getattr(thing, name, None) for name in CODE]
        if kind is types.MethodType:
            return "method", [thing.__func__, thing.__self__]
        if kind in (types.BuiltinFunctionType, types.MethodWrapperType):
            owner = thing.__self__
            return "built-in", [
                thing.__qualname__,
                getattr(thing, "__module__", None),
                owner.__name__ if isinstance(owner, types.ModuleType) else owner,
            ]
        if kind in BUILT_IN:
            return "built-in", [thing.__objclass__, thing.__name__]
        if isinstance(thing, type):
            return "class", [_place(thing)] if _installed(thing) else _class(thing)
        if isinstance(thing, staticmethod | classmethod):
            return kind.__name__, [thing.__func__]
        if kind is property:
            return "property", [thing.fget, thing.fset, thing.fdel]
        if kind is functools.cached_property:
            return "property", [thing.func]
        if kind is types.MappingProxyType:
            return "dict", [dict(thing)]
        if isinstance(thing, functools._lru_cache_wrapper) and not _installed(thing):
            return "cached", [thing.__wrapped__]
        return "object", [kind, *self.object(thing)]

    def module(self, thing):
        """The parts of a module that a function reads."""
        module, names = thing if type(thing) is _Read else (thing, frozenset())
        if _is_library(module.__name__):
            return [module.__name__]
        read = {name: vars(module)[name] for name in sorted(names) if name in vars(module)}
        if not read:
            self.refuse(module, "no name in it is asked for where it is read")
        return [_named(read, names)]

    def tensor(self, thing):
        """The parts of a tensor: what it is, and its numbers, whatever their strides are."""
        torch = sys.modules["torch"]
        try:
            plain = thing.detach().cpu().resolve_conj().resolve_neg().flatten()
            flat = plain.clone(memory_format=torch.contiguous_format).view(torch.uint8)
        except (RuntimeError, NotImplementedError) as error:  # sparse, or without numbers
            self.refuse(thing, error)
        what = str(thing.dtype), str(thing.device), thing.requires_grad, tuple(thing.shape)
        return *what, flat.numpy().tobytes()

    def object(self, thing):
        """The parts of an object: those that it pickles as."""
        try:
            reduce = copyreg.dispatch_table.get(type(thing))
            made = reduce(thing) if reduce else thing.__reduce_ex__(2)
        except Exception as error:  # each type has its own way to say no
            self.refuse(thing, error)
        if isinstance(made, str):
            if not _installed(thing):
                self.refuse(thing, "it pickles as a name alone")
            return [made, _place(thing)]
        function, arguments, state, items, pairs = (*made, *[None] * 5)[:5]
        return [function, arguments, state, *(list(part) for part in (items, pairs) if part)]

    def refuse(self, thing, reason):
        way = [getattr(outer, "__qualname__", None) for outer in self.path]
        way = " > ".join(dict.fromkeys(name for name in way if name))
        raise ValueError(
            f"{f'{way} reaches ' if way else ''}{thing!r}, of which nobody can tell what it holds "
            f"({reason}): give it as an argument, or do without a store or checkpoint"
        )


class _Hashed(bytes):
    """A digest, not to be digested again."""


def _hash(kind, *parts):
    h = hashlib.sha256(kind.encode())
    for part in parts:
        h.update(b"%d:" % len(part))
        h.update(part)
    return _Hashed(h.digest())


def _function(f):
    """What a function of the user's own holds."""
    reads, names, imports = _reads(f.__code__)
    cells = [cell.cell_contents for cell in f.__closure__ or () if _is_full(cell)]
    read = {name: f.__globals__[name] for name in sorted(reads) if name in f.__globals__}
    for level, name in sorted(imports):
        read[f"import {level} {name}"] = _imported("." * level + name, f.__globals__)
    return [
        f.__code__,
        f.__defaults__,
        f.__kwdefaults__,
        [part if not isinstance(part, types.ModuleType) else _Read(part, names) for part in cells],
        f.__dict__,
        _named(read, names),
    ]


def _named(read, names):
    """Globals by name, with their modules as the code reads them."""
    return {
        name: _Read(value, names) if isinstance(value, types.ModuleType) else value
        for name, value in read.items()
    }


def _imported(name, within):
    """A module that code imports, or the name of one that is a library or is not there."""
    try:
        name = importlib.util.resolve_name(name, within.get("__package__") or "")
        return name if _is_library(name) else importlib.import_module(name)
    except ImportError:
        return name


def _is_full(cell):
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # of a name that is not bound yet
        return False
    return True


@functools.cache
def _reads(code):
    """The globals that a code reads, all other names in it, and its imports (level, module)."""
    reads, names, imports = set(), set(code.co_names), set()
    instructions = list(dis.get_instructions(code))
    for i, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME":
            imports.add((instructions[i - 2].argval, instruction.argval))
        elif "GLOBAL" in instruction.opname or instruction.opname == "LOAD_NAME":
            reads.add(instruction.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            of_inner = _reads(inner)
            reads, names, imports = reads | of_inner[0], names | of_inner[1], imports | of_inner[2]
    return frozenset(reads), frozenset(names), frozenset(imports)


def _class(c):
    """What a class of the user's own holds."""
    own = {name: part for name, part in vars(c).items() if name not in NOTES}
    return [c.__qualname__, c.__bases__, type(c), own]


def _place(thing):
    return f"{_home(thing)}.{getattr(thing, '__qualname__', None) or thing.__name__}"


def _home(thing):
    """The name of the module that a thing says it stands in, or None."""
    if isinstance(thing, np.ufunc):  # which does not say it
        return next((m for m in ("numpy", "scipy.special") if _holds(m, thing)), None)
    return getattr(thing, "__module__", None)


def _installed(thing):
    """Whether a thing stands under its own name in an installed package."""
    module = _home(thing)
    if not isinstance(module, str) or not _is_library(module):
        return False
    if isinstance(thing, type) and not thing.__flags__ & 1 << 9:  # no heap type: built in
        return True
    return _holds(module, thing)


def _holds(module, thing):
    found = sys.modules.get(module)
    for name in (getattr(thing, "__qualname__", None) or getattr(thing, "__name__", "")).split("."):
        found = getattr(found, name, None)
    return found is thing


def _is_library(name):
    """Whether a module belongs to Python, to gossipdyn or to an installed package."""
    top = name.partition(".")[0]
    if top == "__main__":
        return False
    if top in sys.stdlib_module_names or top == "gossipdyn":
        return True
    if top in sys.modules:
        spec = getattr(sys.modules[top], "__spec__", None)
    else:
        spec = importlib.util.find_spec(top)
    places = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec else []
    return any({"site-packages", "dist-packages"} & set(Path(place).parts) for place in places)
