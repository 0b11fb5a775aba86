"""Pages of the Python packages: the public names of each, with their docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sphinx.errors import PycodeError
from sphinx.pycode import ModuleAnalyzer

__all__ = ["python_pages", "without_markup"]

_CLIENT: Mapping[str, tuple[str, str]] = {
    "sampler": (
        "Sampler",
        "connect Sampler SamplingOptions EvaluationOptions SampleStream Iterations RoundStream Round StreamProgress "
        "Session SessionRounds DrivenStep MultiAgentStep AgentTurns CallProgress",
    ),
    "batches": (
        "Batches",
        "EpisodeBatch StepType EpisodeBuffer MultiAgentBatch PolicyBatch AgentSteps Account EpisodeFailure "
        "WorkerAccount Receipt Summary leaves_of text_infos",
    ),
    "agents": (
        "Agents",
        "Agent MlpAgent OnnxAgent PythonAgent PickledAgent RandomAgent ConstantAgent Policies AgentChange ActionMask "
        "AgentVersion HeldAgent RunningMoments PolicyMoments",
    ),
    "environments": (
        "Environments",
        "EnvSpec EnvUpdate EnvChange EnvProfile Wrapper Task Vectorization MultiAgentApi Reproducibility",
    ),
    "evaluation": (
        "Evaluation",
        "Evaluation PopulationEvaluation AgentReturns PolicyVersion CrossPlay Video",
    ),
    "learning": ("Learning", "Advantages Estimate PolicyEstimates RunningReturns Transitions ReplayBuffer"),
    "records": ("Datasets and records", "Recording DatasetStream EpisodeRecords RecordStream CallKind RecordPosition"),
    "status": (
        "Status",
        "SamplerStatus SamplerSummary Scaling SettingsReload SettingChange WorkerStatus Counters Quota",
    ),
    "errors": (
        "Errors",
        "RollserveError InvalidArgumentError PreconditionError LimitError AccessError UnavailableError StoppedError "
        "DeadlineError CancelledError ServerError Reason",
    ),
    "asyncio": (
        "With asyncio",
        "aconnect AsyncSampler AsyncIterations AsyncSampleStream AsyncRoundStream AsyncSession AsyncSessionRounds "
        "AsyncDatasetStream "
        "AsyncRecordStream",
    ),
    "memory": ("Memory", "hold_on_to_memory give_back_memory"),
}
"""Pages of the names of `rollserve`: by file, the title and the names in their order."""
_MODULES = ("bridges", "data", "learning", "spaces", "transforms")
"""Public modules of `rollserve`, each with a page for its names."""
_FOREIGN = "Exception,tuple,dict,object,str,int,Generic"
"""Classes whose members are not shown."""
_SERVER = {
    "rollserve_server.local": ("local_server", "LocalServer"),
    "rollserve_server.testing": ("faulty_server", "FaultyServer"),
}


def python_pages() -> Iterator[tuple[str, str]]:
    """Yield the file and the text of each page.

    Raises:
        ValueError: a public name is on no page, or has no docstring.
    """
    package = importlib.import_module("rollserve")
    shown = {name for _, names in _CLIENT.values() for name in names.split()}
    public = set(package.__all__) - set(_MODULES)
    if public != shown:
        raise ValueError(f"rollserve: no page for {sorted(public - shown)}, a page for {sorted(shown - public)}")
    seen: set[type] = set()
    for file, (title, names) in _CLIENT.items():
        yield f"{file}.md", _page(title, "", package, names.split(), seen)
    for name in _MODULES:
        module = importlib.import_module(f"rollserve.{name}")
        yield f"module-{name}.md", _page(module.__name__, _text_of(module), module, sorted(module.__all__), seen)
    content = [_entry(importlib.import_module(module), name) for module, names in _SERVER.items() for name in names]
    yield "server.md", "\n\n".join(["# Servers of programs and tests", *content]) + "\n"
    listed = "\n".join([*_CLIENT, *(f"module-{name}" for name in _MODULES), "server"])
    yield "index.md", f"# Python\n\n```{{toctree}}\n{listed}\n```\n"


def without_markup(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Keep stars and underscores of a docstring, in place: in (N, *O) and `bool_` they are no markup."""
    for number, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        parts[::2] = [re.sub(r"(?<![\\*])\*(?=\w)|(?<=\w)_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
        lines[number] = "".join(parts)


def _page(title: str, about: str, module: Any, names: Sequence[str], seen: set[type]) -> str:
    """Return a page of names, without the classes that another page has shown, which are `seen`."""
    entries = []
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value):
            if value in seen:
                continue
            seen.add(value)
        entries.append(_entry(module, name))
    return "\n\n".join([f"# {title}", *([about] if about else []), *entries]) + "\n"


def _entry(module: Any, name: str) -> str:
    """Return the directive that shows a public name of a module; raise ValueError if it has no docstring."""
    value = getattr(module, name)
    if inspect.isclass(value):
        directive, options = "autoclass", f"   :members:\n   :inherited-members: {_FOREIGN}\n"
    elif inspect.isroutine(value):
        directive, options = "autofunction", ""
    else:
        return f"```{{eval-rst}}\n.. autodata:: {_home_of(value, name)}.{name}\n   :no-value:\n```"
    if not _text_of(value):
        raise ValueError(f"{module.__name__}.{name}: expected a docstring, got none")
    return f"```{{eval-rst}}\n.. {directive}:: {module.__name__}.{name}\n{options}```"


def _home_of(value: object, name: str) -> str:
    """Return the module that assigns a value to a name, and documents it there."""
    for module in [*sys.modules]:
        if module.startswith("rollserve") and sys.modules[module].__dict__.get(name) is value:
            try:
                documented = ModuleAnalyzer.for_module(module).find_attr_docs()
            except PycodeError:  # a package without a file
                continue
            if ("", name) in documented:
                return module
    raise ValueError(f"{name}: expected a docstring behind its value, got none")


def _text_of(value: Any) -> str:
    return inspect.getdoc(value) or ""
