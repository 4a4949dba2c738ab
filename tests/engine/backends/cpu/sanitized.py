"""Run every kernel of a folder at random shapes, each operand in memory of its own, so that a sanitizer sees its ends.

`test_sanitizers.py` starts it in a process with the sanitizer's library: ``python sanitized.py FOLDER EXAMPLES``.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np
from engine.backends.cpu.random_launches import MAKERS, put_special_values
from engine.backends.cpu.random_sizes import MOST, Random, size
from helpers.guarded import Launch
from table.rows import Array

from ag.engine.backends.cpu.library import Library, load
from ag.engine.backends.cpu.native import NativeBackend
from ag.engine.dtype import BF16, F16, F32, DType, as_dtype
from ag.engine.kernels.convert import stored
from ag.engine.primitive import PRIMITIVES

SHARED = 2  # the word of a launch that says whether threads share it


def words_of(backend: NativeBackend, launch: Launch, half: DType = F32,
             chance: float = 0.0) -> tuple[bytes, list[Array]]:
    """A shared launch, and the arrays it works on, which somebody must hold; some of them perhaps in 16 bits."""
    primitive, given = launch.primitive, [np.array(x) for x in launch.operands]
    made: list[tuple[int, ...]] = []
    if primitive.outputs:
        found = primitive.shape(*[x.shape for x in given], **launch.params)
        made = list(found) if primitive.outputs > 1 else [found]
    dtype = given[0].dtype if launch.into is None else launch.into.numpy_name
    arrays = [np.zeros(shape, dtype) for shape in made] + given
    dtypes, rng = [as_dtype(x.dtype, "tests") for x in arrays], np.random.default_rng(len(str(launch)))
    for i, takes in enumerate(backend.halves.get(primitive.name, ()) if half.is_half else ()):
        if takes and dtypes[i] is F32 and (primitive.moves or rng.random() < chance):
            arrays[i], dtypes[i] = stored(arrays[i], half), half
    buffers = tuple(backend.alloc(x.shape, kind) for x, kind in zip(arrays, dtypes, strict=True))
    row = backend.words(primitive, buffers, launch.params)
    assert row is not None, f"{launch} runs in numpy"
    words = np.frombuffer(row[0], np.int64).copy()
    words[SHARED] = 1
    words[SHARED + 1 :][: len(arrays)] = [x.ctypes.data for x in arrays]  # not the backend's, which lie side by side
    return words.tobytes(), arrays


def run(library: Library, backend: NativeBackend, launch: Launch) -> None:
    converts = "bfloat" in launch.primitive.params
    for half in (F16, BF16) if converts else (F32, F16, BF16):
        words, arrays = words_of(backend, launch, half, 1.0 if converts else 0.7)
        for threads in (1, 3):
            library._run(words, 1, threads, 1)
        del arrays


def converting(name: str) -> Callable[[Random], Launch]:
    """Return a maker of launches of a kernel that converts."""
    def make(rng: Random) -> Launch:
        x = rng.standard_normal(size(rng, MOST)).astype(np.float32)
        operands = [x, x.copy()][: len(PRIMITIVES[name].operands) - PRIMITIVES[name].outputs]
        return Launch(PRIMITIVES[name], operands, {"bfloat": False})
    return make


def run_beside(library: Library, backend: NativeBackend) -> None:
    """Launches of three callers who share the cores, and of one who does not know of them."""
    launches = [words_of(backend, MAKERS["exp"](Random(k))) for k in range(4)]

    def work(words: bytes, callers: int) -> None:
        for k in range(200):
            library._run(words, 1, 2 + k // 20 % 3, callers)

    threads = [Thread(target=work, args=(words, callers)) for (words, _), callers in
               zip(launches, (3, 3, 3, 1), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(folder: str, examples: str) -> None:
    library = load(Path(folder)).library
    assert library is not None, f"no kernels in {folder}"
    backend = NativeBackend(library)
    for name in sorted(library.kernels):
        rng = Random(zlib.crc32(name.encode()), empty=0.1)
        for _ in range(int(examples)):
            launch = (MAKERS.get(name) or converting(name))(rng)
            run(library, backend, launch)
            put_special_values(launch, rng)
            run(library, backend, launch)
    run_beside(library, backend)
    print(f"{len(library.kernels)} kernels, {int(examples)} shapes of each")


if __name__ == "__main__":
    main(*sys.argv[1:])
