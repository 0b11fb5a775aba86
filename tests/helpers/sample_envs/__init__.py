"""Environments for tests, each with one trait; servers name them `sample_envs:Class` or `sample_envs:Id-v0`."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium

from sample_envs.failing import (
    Deadly,
    EndsWorkersLater,
    Failing,
    FailsForSomeSeeds,
    Flaky,
    FourValues,
    Greedy,
    Licensed,
    Odd,
    OddInfos,
    Refusing,
    Spoiling,
    Talkative,
)
from sample_envs.impure import Clock, Curriculum, ForgetsItsLength, Ordered, OrderedByAddress, Unseeded
from sample_envs.infos import VariedInfos
from sample_envs.lengths import Ends, NoNumbers, OneEndless, OneOrThousand, Pairs, Ragged
from sample_envs.masks import Masked, MaskedParts, MaskedPartsRows, MaskedRows
from sample_envs.native import (
    CoinRows,
    FlakyCoinRows,
    HangingRows,
    InfoRows,
    NoNumberRows,
    OddInfoRows,
    OddRows,
    PairRows,
    RaisingRows,
    ScreenRows,
    TalkingRows,
    UnlimitedCoinRows,
)
from sample_envs.pictures import PictureRows, Pictures
from sample_envs.rendered import Rendered
from sample_envs.slow import Busy, Hanging, Meeting, Slow, SlowInPlaces, SlowToMake, Watched
from sample_envs.spaces import (
    Assorted,
    Big,
    EverySpace,
    Hybrid,
    ManyActions,
    Nested,
    NotAnEnvironment,
    OddlyNamed,
    OddSpaces,
    OwnBounds,
    Returns,
    Screens,
    Shapes,
    Spaceless,
    Switches,
    Talking,
    Varying,
    WrongObservation,
)
from sample_envs.stacks import FrameStackRows, FrameStacks
from sample_envs.tasks import Recall, Tasks
from sample_envs.unfit import Crashing, Curious, Growing, Hoarding, Misfit, OldStyle, Scribbling, WideRows

__all__ = [
    "NOT_AN_ENVIRONMENT",
    "Assorted",
    "Big",
    "Busy",
    "Clock",
    "CoinRows",
    "Crashing",
    "Curious",
    "Curriculum",
    "Deadly",
    "Ends",
    "EndsWorkersLater",
    "EverySpace",
    "Failing",
    "FailsForSomeSeeds",
    "Flaky",
    "FlakyCoinRows",
    "ForgetsItsLength",
    "FourValues",
    "FrameStackRows",
    "FrameStacks",
    "Greedy",
    "Growing",
    "Hanging",
    "HangingRows",
    "Hoarding",
    "Hybrid",
    "InfoRows",
    "Licensed",
    "ManyActions",
    "Masked",
    "MaskedParts",
    "MaskedPartsRows",
    "MaskedRows",
    "Meeting",
    "Misfit",
    "Nested",
    "NoNumberRows",
    "NoNumbers",
    "NotAnEnvironment",
    "Odd",
    "OddInfoRows",
    "OddInfos",
    "OddRows",
    "OddSpaces",
    "OddlyNamed",
    "OldStyle",
    "OneEndless",
    "OneOrThousand",
    "Ordered",
    "OrderedByAddress",
    "OwnBounds",
    "PairRows",
    "Pairs",
    "PictureRows",
    "Pictures",
    "Ragged",
    "RaisingRows",
    "Recall",
    "Refusing",
    "Rendered",
    "Returns",
    "ScreenRows",
    "Screens",
    "Scribbling",
    "Shapes",
    "Slow",
    "SlowInPlaces",
    "SlowToMake",
    "Spaceless",
    "Spoiling",
    "Switches",
    "Talkative",
    "Talking",
    "TalkingRows",
    "Tasks",
    "UnlimitedCoinRows",
    "Unseeded",
    "VariedInfos",
    "Varying",
    "Watched",
    "WideRows",
    "WrongObservation",
    "crowd",
    "crowded",
    "halved_rewards",
    "phoenix",
    "relay",
]

NOT_AN_ENVIRONMENT = 3


def crowd(**kwargs: Any) -> Any:
    """Make a `Crowd`; its module imports PettingZoo, which most tests do without."""
    return importlib.import_module("sample_envs.many").Crowd(**kwargs)


def relay(**kwargs: Any) -> Any:
    """Make a `Relay`."""
    return importlib.import_module("sample_envs.many").Relay(**kwargs)


def phoenix(**kwargs: Any) -> Any:
    """Make a `Phoenix`."""
    return importlib.import_module("sample_envs.many").Phoenix(**kwargs)


def halved_rewards(env: Any) -> Any:
    """Wrap an AEC environment in `HalvedRewards`."""
    return importlib.import_module("sample_envs.many").HalvedRewards(env)


def crowded(env: Any) -> Any:
    """Return an environment of another interface than a wrapper's is."""
    return crowd()


gymnasium.register("Nested-v0", Nested)
gymnasium.register("Coins-v0", vector_entry_point=CoinRows)
gymnasium.register("UnlimitedCoins-v0", OneOrThousand, vector_entry_point=UnlimitedCoinRows)
gymnasium.register("NoNumberRows-v0", vector_entry_point=NoNumberRows)
gymnasium.register("FlakyCoins-v0", vector_entry_point=FlakyCoinRows)
gymnasium.register("FrameStacks-v0", FrameStacks, vector_entry_point=FrameStackRows)
gymnasium.register("ScreenRows-v0", vector_entry_point=ScreenRows)
gymnasium.register("Infos-v0", vector_entry_point=InfoRows)
gymnasium.register("HangingRows-v0", vector_entry_point=HangingRows)
gymnasium.register("Pairs-v0", Pairs, vector_entry_point=PairRows)
gymnasium.register("RaisingRows-v0", vector_entry_point=RaisingRows)
gymnasium.register("OddInfoRows-v0", vector_entry_point=OddInfoRows)
gymnasium.register("OddRows-v0", vector_entry_point=OddRows)
gymnasium.register("WideRows-v0", vector_entry_point=WideRows)
gymnasium.register("Pictures-v0", Pictures, vector_entry_point=PictureRows)
gymnasium.register("Crashing-v0", Crashing)
gymnasium.register("TalkingRows-v0", vector_entry_point=TalkingRows)
gymnasium.register("Masked-v0", Masked, vector_entry_point=MaskedRows)
gymnasium.register("MaskedParts-v0", MaskedParts, vector_entry_point=MaskedPartsRows)
