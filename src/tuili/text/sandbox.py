"""Run a chat template that came with a model file: nothing in it is trusted.

Jinja's immutable sandbox keeps templates away from Python's internals and from the caller's data. It limits neither time nor
memory, so every operation is metered here as well: loops, calls, filters, operators, literals, comparisons and output charge the
size of what they touch to one budget, before they run where the result may be larger than its operands, and each charge looks at
the clock. An operation which cannot be bounded that way does not exist in these templates: filters, methods and callables are
those listed below. So a hostile template ends within the time limit and a few times the budget in memory, in the thread that
renders it.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import datetime
from string import Formatter
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace, pass_context
from jinja2.visitor import NodeTransformer

from tuili.text.meter import GUARDS, MACRO_CALL, Meter, TooMuchWork, check_int, guard_method, guard_operator

MAX_SOURCE = 256 * 1024  # characters

FILTERS = """
abs batch capitalize center count d default dictsort e escape filesizeformat first float forceescape format groupby indent int
items join last length list lower map max min reject rejectattr replace reverse round safe select selectattr slice sort string sum
title trim truncate unique upper urlencode wordcount
"""
STR_METHODS = """
capitalize casefold center count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric
isprintable isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix replace rfind rindex rjust
rpartition rsplit rstrip split splitlines startswith strip swapcase title upper zfill
"""
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(STR_METHODS.split()),
    dict: frozenset(["copy", "get", "items", "keys", "values"]),
    list: frozenset(["copy", "count", "index"]),
    tuple: frozenset(["count", "index"]),
}
#: Filters that take items as they are; the others may print or compare what is inside.
SHALLOW = """
batch count d default first items last length list map reject rejectattr reverse select selectattr slice
"""
COMPARISONS = frozenset(
    ["!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lt", "ne"]
)


class Refusal(TemplateError):
    """The template called raise_exception."""


class MeteredContext(Context):
    """Template variables and, out of the template's sight, its meter."""

    meter: Meter


class PlainNamespace(Namespace):
    """``namespace()`` of templates: no underscored names, and a text form without its content."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as in Jinja: "self" may be a name of the namespace
        names = dict(*args[1:], **kwargs)
        for name in names:
            _check_name(name)
        Namespace.__init__(args[0], names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as Hugging Face's chat templates expect it (transformers, utils/chat_template_utils.py), with a meter."""

    context_class = MeteredContext
    intercepted_binops = frozenset(["+", "-", "*", "**", "%", "//", "/"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[loopcontrols, GenerationBlock],
            finalize=_output,
        )
        known = {name: self.filters[name] for name in FILTERS.split()}
        shallow = SHALLOW.split()
        self.filters = {name: _metered(filter, name not in shallow, GUARDS.get(name)) for name, filter in known.items()}
        self.filters |= {
            "tojson": _to_json,
            "_each": _each,
            "_concat": _concat,
            "_spend": _spend,
            "_weigh": _weigh,
            "_span": _span,
        }
        self.tests = {name: _metered(test, name in COMPARISONS, None) for name, test in self.tests.items()}
        self.globals = {
            "range": _range,
            "dict": _dict,
            "namespace": PlainNamespace,
            "cycler": Cycler,
            "joiner": Joiner,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        self._callables = frozenset(self.globals.values())

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE:
            raise TooMuchWork(f"it is {len(source)} characters long, more than {MAX_SOURCE}")
        return _Metering().visit(super()._parse(source, name, filename))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = _meter(context)
        guard_operator(meter, operator, left, right)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int):
            check_int(result)
        return result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        meter = _meter(__context)
        __self._check_callable(__obj)
        owner = getattr(__obj, "__self__", None)
        meter.charge_shallow(owner, *args, *kwargs.values())
        if isinstance(__obj, Macro):
            meter.charge(MACRO_CALL)
        elif isinstance(__obj, _Format):
            __obj.guard(meter, *args, *kwargs.values())
        elif isinstance(owner, str):
            guard_method(meter, owner, __obj.__name__, args)
        elif isinstance(owner, list | tuple):
            meter.charge_for(owner, *args)  # count and index compare
        result = super().call(__context, __obj, *args, **kwargs)
        meter.charge_shallow(result)
        return result

    def _check_callable(self, function: Any) -> None:
        if isinstance(function, Macro | Undefined | _Format) or (
            getattr(function, "__hash__", None) and function in self._callables
        ):
            return
        if isinstance(function, BuiltinMethodType):
            allowed = METHODS.get(type(function.__self__), frozenset())
        elif isinstance(function, MethodType) and isinstance(function.__self__, LoopContext | Cycler | Joiner):
            allowed = frozenset(["cycle", "changed", "next", "reset"])
        elif isinstance(function, Joiner):
            return
        else:
            allowed = frozenset[str]()
        if getattr(function, "__name__", "") not in allowed:
            raise SecurityError(f"{getattr(function, '__name__', type(function).__name__)} may not be called in a chat template")

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) is PlainNamespace:  # half of all look-ups of some templates; it has no attributes but the template's
            return not attr.startswith("_")
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r}")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        safe = super().wrap_str_format(value)
        return None if safe is None else _Format(value.__self__, safe)


class _Format:
    """``str.format`` of a template's text: Jinja's safe one, which does not limit the length of the result."""

    def __init__(self, text: str, safe: Callable[..., str]) -> None:
        self._text, self._safe = text, safe
        self.__name__ = "format"

    def guard(self, meter: Meter, *values: Any) -> None:
        fields = [spec or "" for _, name, spec, _ in Formatter().parse(self._text) if name is not None]
        if any("{" in spec or re.search(r"\d{4}", spec) for spec in fields):
            raise TooMuchWork("it formats text to a great width")
        meter.charge(len(self._text) + len(fields) * (1000 + sum(map(meter.weigh, values))))

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        return self._safe(*args, **kwargs)


class GenerationBlock(Extension):
    """``{% generation %}``: marks what a model is trained on; when prompting it is its content."""

    tags = {"generation"}  # noqa: RUF012  as in Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Metering(NodeTransformer):
    """Put the meter where Jinja has no hook: loops, macros, ``~``, comparisons, literals, slices."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            raise TemplateError("recursive loops are not supported in chat templates")
        weight = _template_data(node.body)
        self.generic_visit(node)
        node.iter = _call_filter(node.iter, "_each", nodes.Const(weight))
        return node

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:
        weight = _template_data(node.body)
        self.generic_visit(node)
        spend = nodes.ExprStmt(_call_filter(nodes.Const(weight), "_spend"), lineno=node.lineno)
        node.body.insert(0, spend)
        return node

    visit_CallBlock = visit_Macro

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call_filter(node.nodes[0], "_concat", *node.nodes[1:])

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _weighed(node.expr)
        for operand in node.ops:
            operand.expr = _weighed(operand.expr)
        return node

    def visit_List(self, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return node if isinstance(node, nodes.Tuple) and node.ctx != "load" else _weighed(node)

    visit_Tuple = visit_Dict = visit_List

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _call_filter(node, "_span") if isinstance(node.arg, nodes.Slice) else node

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        if isinstance(node.value, int):
            check_int(node.value)
        return node


def _call_filter(value: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    assert isinstance(value, nodes.Expr)
    return nodes.Filter(value, name, list(args), [], None, None, lineno=value.lineno)


def _weighed(value: nodes.Expr) -> nodes.Expr:
    return value if isinstance(value, nodes.Const) else _call_filter(value, "_weigh")


def _template_data(body: list[nodes.Node]) -> int:
    return sum(len(data.data) for node in body for data in [*node.find_all(nodes.TemplateData), *_own_data(node)])


def _own_data(node: nodes.Node) -> list[nodes.TemplateData]:
    return [node] if isinstance(node, nodes.TemplateData) else []


def _meter(context: Context) -> Meter:
    assert isinstance(context, MeteredContext)
    return context.meter


class _Each:
    """An iterable that charges each step."""

    def __init__(self, items: Iterable[Any], weight: int, meter: Meter) -> None:
        self._items, self._weight, self._meter = items, weight, meter

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._meter.charge(self._weight)
            yield item

    def __len__(self) -> int:
        if not isinstance(self._items, Sized):
            raise TypeError("a generator has no length")
        return len(self._items)


@pass_context
def _each(context: Context, items: Iterable[Any], weight: int) -> Iterable[Any]:
    iter(items)  # say now if it cannot be looped over
    return _Each(items, weight, _meter(context))


@pass_context
def _concat(context: Context, *values: Any) -> str:
    _meter(context).charge_for(*values)
    return "".join(map(str, values))


@pass_context
def _weigh(context: Context, value: Any) -> Any:
    _meter(context).charge_for(value)
    return value


@pass_context
def _span(context: Context, value: Any) -> Any:
    _meter(context).charge_shallow(value)
    return value


@pass_context
def _spend(context: Context, weight: int) -> None:
    _meter(context).charge(weight)


@pass_context
def _output(context: Context, value: Any) -> Any:
    _meter(context).charge_for(value)
    return value


def _metered(function: Callable[..., Any], deep: bool, guard: Callable[..., None] | None) -> Callable[..., Any]:
    """``function``, a filter or test, charged for its operands and its result."""
    passed = getattr(function, "jinja_pass_arg", None)
    kind = passed.name if passed is not None else ""

    @pass_context
    def metered(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter = _meter(context)
        charge = meter.charge_for if deep else meter.charge_shallow
        charge(value, *args, *kwargs.values())
        if guard is not None:
            guard(meter, value, *args, **kwargs)
        first = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}.get(kind)
        result = function(value, *args, **kwargs) if first is None else function(first, value, *args, **kwargs)
        if isinstance(result, int):
            check_int(result)
        meter.charge_shallow(result)
        return result

    return metered


@pass_context
def _to_json(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """``tojson`` as Hugging Face has it: no HTML escapes."""
    meter = _meter(context)
    meter.charge(2 * meter.weigh(value))
    if meter.weigh(indent) > 32 or (isinstance(indent, int) and indent > 32) or meter.weigh(separators) > 64:
        raise TooMuchWork("it indents JSON by more than 32")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if indent is None:
        return encoder.encode(value)
    chunks: list[str] = []
    for chunk in encoder.iterencode(value):
        meter.charge(len(chunk))
        chunks.append(chunk)
    return "".join(chunks)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace may not hold the name {name!r}")


def _range(*args: int) -> range:
    for value in args:
        check_int(1024 * value)
    numbers = range(*args)
    if len(numbers) > 100_000:
        raise TooMuchWork(f"it loops over a range of {len(numbers)}")
    return numbers


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: Any) -> None:
    raise Refusal(message if isinstance(message, str) else "it gives no reason")


def _strftime_now(form: Any) -> str:
    if not isinstance(form, str) or len(form) > 200:
        raise SecurityError("strftime_now takes a short text in a chat template")
    return datetime.now().strftime(form)
