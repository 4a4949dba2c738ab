"""Check the names of `ag`: the flat ones, and seven namespaces that have the same objects by subject."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pydoc
import re
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType

import pytest

import ag
from ag import names

NAMESPACES = ("data", "io", "nn", "ops", "optim", "parallel", "training")
ESTIMATORS = {"AgClassifier", "AgRegressor"} if find_spec("sklearn") else set()  # which need scikit-learn
# What is public in these is in `ag`.
INSIDE = {"autograd", "capture", "engine", "errors", "log", "names", "native", "tools", "version"}


def home(thing: object) -> str:
    """The folder of `ag` in which something is defined."""
    return str(getattr(thing, "__module__", "")).split(".")[1]


def public(namespace: str) -> Iterator[tuple[str, object]]:
    """Names of a namespace other than of its files."""
    for name, thing in vars(getattr(ag, namespace)).items():
        if not name.startswith("_") and not inspect.ismodule(thing):
            yield name, thing


def test_ag_shows_its_public_names_and_the_namespaces() -> None:
    assert sorted(dir(ag)) == sorted([*ag.__all__, *NAMESPACES, "__version__", *ESTIMATORS])


def test_nothing_else_is_an_attribute_but_folders_and_files() -> None:
    hidden = {name for name in vars(ag) if not name.startswith("_")} - set(dir(ag))
    assert hidden == INSIDE  # Python sets these when it imports what is in them
    assert all(isinstance(vars(ag)[name], ModuleType) for name in hidden)


def test_a_public_name_is_in_its_namespace() -> None:
    for name, thing in [(name, getattr(ag, name)) for name in ag.__all__]:
        assert home(thing) not in NAMESPACES or getattr(getattr(ag, home(thing)), name) is thing, name


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_namespace_holds_what_its_folder_defines(namespace: str) -> None:
    foreign = [name for name, thing in public(namespace) if home(thing) != namespace]
    assert not foreign


# Names of ggmlR's whose ordinary name is not the rest of theirs.
ORDINARY = {
    "ag_batch_norm_op": ("ops", "batch_norm"), "ag_layer_norm_op": ("ops", "layer_norm"),  # `nn` has the layers
    "ag_rms_norm_op": ("ops", "rms_norm"), "ag_rms_norm": ("nn", "RMSNorm"),
    "ag_conv2d_layer": ("nn", "Conv2d"), "ag_flatten_layer": ("nn", "Flatten"), "ag_resnet": ("nn", "ResNet"),
    "ag_dataloader": ("data", "DataLoader"), "ag_multihead_attention": ("nn", "MultiheadAttention"),
    "optimizer_sgd": ("optim", "SGD"), "optimizer_adam": ("optim", "Adam"), "optimizer_adamw": ("optim", "AdamW"),
    "lr_scheduler_step": ("optim", "StepSchedule"), "lr_scheduler_cosine": ("optim", "CosineSchedule"),
    "lr_scheduler_warmup": ("optim", "WarmupSchedule"),
}
PREFIXED = [name for name in ag.__all__ if name.startswith(("ag_", "optimizer_", "lr_scheduler_"))
            and home(getattr(ag, name)) in NAMESPACES]


def test_a_name_with_a_prefix_has_an_ordinary_one() -> None:
    """Both are one object: functions are called what follows the prefix, classes so with capitals."""
    for name, thing in [(name, getattr(ag, name)) for name in PREFIXED]:
        plain = name.removeprefix("ag_")
        space, ordinary = ORDINARY.get(name, (home(thing), "".join(part.capitalize() for part in plain.split("_"))
                                              if inspect.isclass(thing) else plain))
        assert getattr(getattr(ag, space), ordinary) is thing, name
        assert ordinary in dir(getattr(ag, space)), name
        assert not inspect.isclass(thing) or thing.__name__ == ordinary, name


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_namespace_shows_names_and_no_files(namespace: str) -> None:
    also = {"data": {"imagenet"}, "nn": {"init"}, "io": {"layouts"}, "training": ESTIMATORS}
    shown = dir(getattr(ag, namespace))
    assert shown == sorted({name for name, _ in public(namespace)} | also.get(namespace, set()))


@pytest.mark.parametrize("file", ["attention", "matmul"])
def test_files_whose_names_are_ops_are_still_found(file: str) -> None:
    module = importlib.import_module(f"ag.ops.{file}")
    assert inspect.ismodule(module) and getattr(module, f"ag_{file}") is getattr(ag.ops, file)


def test_the_message_of_a_wrong_name_is_made_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs, and `dp_train` in every step, ask with hasattr, which must cost little."""
    layer, optimizer = ag.ag_linear(1, 1), ag.optimizer_sgd(ag.ag_linear(1, 1).parameters(), lr=0.1)
    with monkeypatch.context() as patch:
        patch.setattr(names, "_close", None)
        for x in (ag, ag.nn, layer, layer.W, optimizer, ag.Tensor):
            assert not hasattr(x, "traininf")
        with pytest.raises(AttributeError) as caught:
            layer.traininf  # noqa: B018
    assert str(caught.value) == "Linear: there is no 'traininf'; did you mean 'training'?"
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is AttributeError and str(again) == str(caught.value)


SHOWN = [getattr(space, name) for space in (ag, *(getattr(ag, name) for name in NAMESPACES)) for name in dir(space)]
CLASSES = sorted({thing for thing in SHOWN if inspect.isclass(thing) and home(thing) != "errors"},
                 key=lambda cls: str(cls.__name__))


def squeezed(text: str) -> str:
    """A text without blanks, quotes, and the bars that `help` draws."""
    return re.sub(r"[\s|'\"]", "", text)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_help_shows_how_an_object_is_made(cls: type) -> None:
    found = inspect.signature(cls)
    assert found.return_annotation is inspect.Signature.empty
    assert "ForwardRef" not in str(found)
    if inspect.isfunction(init := inspect.getattr_static(cls, "__init__")):
        assert list(found.parameters.values()) == list(inspect.signature(init).parameters.values())[1:]
    if not cls.__doc__ or not cls.__doc__.startswith(f"{cls.__name__}("):
        shown = squeezed(pydoc.render_doc(cls, renderer=pydoc.plaintext))  # newer Pythons break lines and quote nothing
        assert squeezed(f"{cls.__name__}{found}") in shown or not found.parameters


def test_signatures_of_a_users_classes_are_their_own() -> None:
    class Plain(ag.nn.Layer):
        pass

    class Wide(ag.nn.Linear):
        def __init__(self, width: int = 3) -> None:
            super().__init__(width, width)

        def __call__(self, x: object) -> ag.Tensor:
            return super().__call__(x)

    class Made(ag.nn.Layer):
        def __new__(cls, here: int) -> Made:
            return super().__new__(cls)

    assert str(inspect.signature(Plain)) == "()"
    assert str(inspect.signature(Wide)) == "(width: 'int' = 3)"
    assert str(inspect.signature(Wide())) == "(x: 'object') -> 'ag.Tensor'"  # of an object: how it is called
    assert list(inspect.signature(Made).parameters) == ["here"]
    assert str(inspect.signature(ag.RankLostError)) == "(message: 'str', ranks: 'tuple[int, ...]' = ())"
