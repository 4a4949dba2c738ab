"""A ResNet on ImageNet, or on any folder of images in its layout. Run it as

    python examples/make_image_tree.py digits /tmp/digits
    python examples/train_imagenet.py --data /tmp/digits

or with `--config FILE.yaml`, whose keys are the fields of `Settings`; examples/train_imagenet.yaml has those for
ImageNet itself.  Every step is a line of the log, with the learning rate that it had; at the end of every epoch a line
has the top-1 and top-5 accuracy on the validation images, too.  With `--resume` the job goes on from its checkpoint,
and the log from the same step: in the end it is to the bit that of a job that was never stopped, on any number of like
devices and ranks (on the CPU with one thread for numpy, OPENBLAS_NUM_THREADS=1).
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import ag
from ag.data import imagenet
from ag.data.image_folder import ImageList

HEADER = "step,epoch,lr,loss,top1,top5"


@dataclass(frozen=True)
class Settings:
    """What can be set; the defaults are for the digits of make_image_tree.py."""

    data: str = ""  # a folder in ImageNet's layout
    backend: str = "mpi"  # of the world: see ag.DistributedWorld.init
    devices: tuple[str, ...] | None = None  # of this rank; None: every Vulkan device, or the CPU
    depth: int = 18
    width: int = 16
    small_input: bool = False
    size: int = 32  # pixels of an image, as the model sees it
    shorter_side: int = 34  # pixels before it is cut out
    random_crop: bool = True
    random_flip: bool = False
    epochs: int = 3
    batch: int = 64  # images per step, of all devices together
    stack: int = 16  # images that a device passes at once
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 1e-4
    warmup: float = 0.5  # epochs in which the rate rises to `lr`
    schedule: str = "cosine"  # what follows: "cosine" to 0, or "step", a tenth every `step_epochs`
    step_epochs: float = 30.0
    seed: int = 0
    log: str = "train_imagenet.csv"
    checkpoint: str = "train_imagenet.safetensors"


# ---------------------------------------------------------------------------------------------- settings


def read(path: str) -> Settings:
    """The settings of a YAML file; every mistake ends the program with one sentence that names its line."""
    content = Path(path).read_bytes()
    try:
        root = yaml.compose(content.decode(), yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        at = getattr(error, "position", getattr(error, "start", 0))  # where a character cannot be read
        line = mark.line if mark else content[:at].count(b"\n")
        said = getattr(error, "problem", None) or getattr(error, "reason", None) or "too many levels"
        sys.exit(f"train_imagenet: {path}, line {line + 1}: it is not YAML ({said}); keys with values are required.")
    if root is None:
        return Settings()
    if root.id != "mapping":
        wrong(path, root, "it begins with something else; keys with values are required")
    kinds = {field.name: str(field.type) for field in fields(Settings)}
    given: dict[str, Any] = {}
    for key, value in root.value:
        name = key.value if key.id == "scalar" else f"a {key.id}"
        if name not in kinds:
            wrong(path, key, f"there is no setting {name!r}; one of {', '.join(kinds)} is required")
        if name in given:
            wrong(path, key, f"{name} is given twice; once is required")
        given[name] = value_of(path, name, kinds[name], value)
    settings = Settings(**given)
    try:
        check(settings)
    except ValueError as error:
        lines = {key.value: key for key, _ in root.value}
        wrong(path, lines.get(error.args[1], root), error.args[0])
    return settings


def value_of(path: str, name: str, kind: str, node: Any) -> Any:
    """What a YAML value stands for."""
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
    if kind.startswith("tuple"):
        if node.id == "sequence" and node.value and all(item.id == "scalar" for item in node.value):
            return tuple(str(item.value) for item in node.value)
        wrong(path, node, f"{name} is given as a {node.id}; a list of devices is required")
    value = None
    if node.id == "scalar" and node.tag in TAGS[kind]:
        try:
            value = float(node.value) if node.tag.endswith("str") and kind == "float" else (
                yaml.SafeLoader("").construct_object(node))
        except (ValueError, LookupError, yaml.YAMLError):  # such as !!int text
            value = None
    if value is None:
        shown = repr(node.value)[:60] if node.id == "scalar" else f"a {node.id}"
        wrong(path, node, f"{name} is {shown}; {words[kind]} is required")
    return float(value) if kind == "float" else value


TAGS = {kind: [f"tag:yaml.org,2002:{tag}" for tag in tags] for kind, tags in {
    "int": ["int"], "float": ["int", "float", "str"], "bool": ["bool"], "str": ["str"]}.items()}  # 1e-4 is text there


def wrong(path: str, node: Any, fault: str) -> None:
    sys.exit(f"train_imagenet: {path}, line {node.start_mark.line + 1}: {fault}.")


def check(s: Settings) -> None:
    """Raise a ValueError, with what is wrong and the setting's name, where the library would not name the setting."""
    for name in ("size", "shorter_side", "epochs", "batch", "stack", "width"):
        if not 1 <= getattr(s, name) <= 100_000:
            raise ValueError(f"{name} is {getattr(s, name)}; a number from 1 to 100000 is required", name)
    for name in ("lr", "weight_decay", "warmup"):
        if not 0 <= getattr(s, name) < np.inf:
            raise ValueError(f"{name} is {getattr(s, name)}; a finite number of at least 0 is required", name)
    if s.depth not in (18, 34, 50):
        raise ValueError(f"depth is {s.depth}; 18, 34 or 50 is required", "depth")
    if s.shorter_side < s.size:
        raise ValueError(f"shorter_side is {s.shorter_side} and size {s.size}; at least as much is required",
                         "shorter_side")
    if not 0 <= s.momentum < 1:
        raise ValueError(f"momentum is {s.momentum}; a number of at least 0 and less than 1 is required", "momentum")
    if s.schedule not in ("cosine", "step"):
        raise ValueError(f"schedule is {s.schedule!r}; cosine or step is required", "schedule")
    if not 0 < s.step_epochs < np.inf:
        raise ValueError(f"step_epochs is {s.step_epochs}; a positive number is required", "step_epochs")
    if s.stack > s.batch:
        raise ValueError(f"stack is {s.stack} and batch {s.batch}; at most as much is required", "stack")


# ---------------------------------------------------------------------------------------------- training


class Job:
    """One training: what `dp_train` calls, and the log."""

    def __init__(self, settings: Settings, world: Any) -> None:
        s = self.settings = settings
        self.world = world
        training = imagenet.train_solutions(s.data)
        self.validation = imagenet.val_solutions(s.data)
        self.classes = len(training.classes)
        self.data = self.loader(training, s.batch, shuffle=True, random_crop=s.random_crop, random_flip=s.random_flip)
        self.images, self.batch = len(training), min(s.batch, len(training))
        self.steps = -(-s.epochs * self.images // self.batch)
        self.schedule: Any = None
        self.log = Log(Path(s.log))
        self.losses: list[float] = []  # of this epoch's steps

    def loader(self, images: ImageList, batch: int, **options: Any) -> ag.ag_image_folder:
        s = self.settings
        return ag.ag_image_folder(images, s.size, batch, shorter_side=s.shorter_side,
                                  normalize=imagenet.MEAN_AND_DEVIATION, **options)

    def make_model(self) -> ag.Layer:
        s = self.settings
        return ag.ag_resnet(s.depth, self.classes, s.width, s.small_input)

    def make_optimizer(self, params: dict[str, ag.Tensor]) -> Any:
        s = self.settings
        return ag.optimizer_sgd(params, lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay)

    def make_schedule(self, optimizer: Any) -> Any:
        s, epoch = self.settings, self.images / self.batch  # in steps
        rise = min(round(s.warmup * epoch), self.steps - 1)
        if s.schedule == "cosine":
            after: Any = ag.lr_scheduler_cosine(optimizer, T_max=self.steps - rise)
        else:
            after = ag.lr_scheduler_step(optimizer, step_size=max(1, round(s.step_epochs * epoch)), gamma=0.1)
        self.schedule = ag.lr_scheduler_warmup(optimizer, rise, after=after) if rise else after
        return self.schedule

    def train(self, resume: bool = False) -> ag.DPResult:
        s = self.settings
        return ag.dp_train(
            self.make_model, self.data, ag.ag_softmax_cross_entropy_loss, devices=list(self.world.devices),
            n_iter=self.steps, batch=self.batch, stack=min(s.stack, self.batch), optimizer=self.make_optimizer,
            scheduler=self.make_schedule, seed=s.seed, verbose=False, world=self.world, callback=self.after_step,
            checkpoint=s.checkpoint, checkpoint_every=max(1, round(self.images / self.batch)), resume=resume)

    def after_step(self, step: ag.DPStep) -> None:
        """Write a line of the log; at the end of an epoch, measure the accuracy."""
        self.losses.append(step.loss)
        passes = step.step * self.batch // self.images  # that were complete before this step
        is_last = (step.step + 1) * self.batch // self.images > passes
        accuracies = self.accuracies(step) if is_last else None
        epoch = passes + 1
        applied = self.schedule.at(self.schedule.steps - 1)  # it was stepped already, for the next step
        row = [step.step + 1, epoch, repr(applied), repr(step.loss), *map(repr, accuracies or ())]
        self.log.note(step.step + 1, ",".join(map(str, row)) + ",," * (accuracies is None))
        if step.ranks.rank == 0:
            self.log.write()
            if accuracies is not None:
                print(f"epoch {epoch}: loss {np.mean(self.losses):.4f}, top-1 {accuracies[0]:.4f}, "
                      f"top-5 {accuracies[1]:.4f}", flush=True)
        if accuracies is not None:
            self.losses = []

    def accuracies(self, step: ag.DPStep) -> tuple[float, float]:
        """Top-1 and top-5 accuracy on the validation images, which all models of all ranks share out by batches."""
        total, places = np.zeros(3, np.int64), len(step.models)
        while total[2] != len(self.validation):  # again, if a rank was lost before it had told its counts
            starts = range(0, len(self.validation), self.settings.batch)[step.ranks.rank :: step.ranks.size]
            with ThreadPoolExecutor(places) as pool:
                found = sum(pool.map(self.hits, step.models, (starts[i::places] for i in range(places))))
            total = np.sum(step.ranks.gather(found.tolist()), axis=0)
        return float(total[0] / total[2]), float(total[1] / total[2])

    def hits(self, model: ag.Layer, starts: range) -> np.ndarray:
        """How many images of the batches that begin there have their class first, or in the first five; how many."""
        found = np.zeros(3, np.int64)
        mine = [i for start in starts for i in range(len(self.validation))[start : start + self.settings.batch]]
        if not mine:
            return found
        part = replace(self.validation, files=tuple(self.validation.files[i] for i in mine),
                       ids=self.validation.ids[mine])
        ag.ag_eval(model)
        with ag.ag_device(model.fc.W.device), ag.no_grad():
            for batch in self.loader(part, self.settings.batch, shuffle=False):
                out = model(batch.x)
                found += [*(imagenet.topk_hits(out, batch.y, k) for k in (1, min(5, self.classes))), len(batch.y)]
        ag.ag_train(model)
        return found


class Log:
    """A CSV file of which every line is of one step; a job that goes on from an earlier step writes them anew.

    All ranks note all lines, as a rank that is lost may not have written its last one.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.lines, self.written = path, dict[int, str](), 0  # by step; how many this rank has written

    def note(self, step: int, line: str) -> None:
        self.lines[step] = line

    def write(self) -> None:
        """Write what was noted since the last call, or all of it after the lines of steps before, in the first."""
        if not self.written:
            first = min(self.lines)
            old = self.path.read_text().splitlines()[1:] if first > 1 and self.path.exists() else []
            kept = [row for row in old if row.partition(",")[0].isdecimal() and int(row.partition(",")[0]) < first]
            self.path.write_text("\n".join([HEADER, *kept, ""]))
        with self.path.open("a") as file:
            file.write("".join(line + "\n" for line in [*self.lines.values()][self.written :]))
        self.written = len(self.lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a ResNet on images in ImageNet's layout.")
    parser.add_argument("--config", help="a YAML file of settings")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint, if there is one")
    for name, text in (("data", "the folder of images"), ("backend", "local, or mpi"), ("log", "CSV file to write"),
                       ("checkpoint", "file to write"), ("devices", "such as cpu,cpu:1 or vulkan:0,vulkan:1"),
                       ("epochs", "passes over the images")):
        parser.add_argument(f"--{name}", help=text, type=int if name == "epochs" else str)
    options = parser.parse_args()
    settings = read(options.config) if options.config else Settings()
    given = {name: value for name, value in vars(options).items()
             if value is not None and name not in ("config", "resume")}
    if "devices" in given:
        given["devices"] = tuple(given["devices"].split(","))
    settings = replace(settings, **given)
    if not settings.data:
        sys.exit("train_imagenet: data is not set; name the folder of images with --data, or make one with "
                 "examples/make_image_tree.py.")
    try:
        world = ag.DistributedWorld.init(settings.backend, devices=settings.devices)
        Job(settings, world).train(options.resume)
    except (ag.AgError, OSError, ValueError) as error:
        sys.exit(f"train_imagenet: {error}")


if __name__ == "__main__":
    main()
