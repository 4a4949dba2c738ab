"""A cache of keys and values: each sample's tokens lie one behind the other, at positions that the device counts.

A chunk of tokens may have padding, before or behind the tokens of a sample, as `lengths` says.  Padding takes no place.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ag.engine.primitive import Array, primitive


@primitive(lambda at, _lengths, *, times, left: (times, *at), updates=("at",), layout=lambda _out, at, lengths, **_p: {
    "batch": at[0], "length_step": int(bool(lengths))})
def cache_places(out: Array, at: Array, lengths: Array, *, times: int, left: bool) -> None:
    # Where each token of a chunk goes, -1 for padding; then `at`, where each sample ends, moves on.
    token = np.arange(times)[:, None] - (times - lengths if left else 0)
    np.copyto(out, np.where((token >= 0) & (token < lengths), at + token, -1))
    at += lengths


@primitive(outputs=0, updates=("keys", "values"), layout=lambda keys, values, k, v, places: {
    "n": prod(k) + prod(v), "features": k[0], "capacity": keys[1], "times": k[1], "batch": k[2]})
def cache_append(keys: Array, values: Array, k: Array, v: Array, places: Array) -> None:
    # keys[.., places[t, b], b] = k[.., t, b], and values likewise
    time, sample = np.nonzero((places >= 0) & (places < keys.shape[1]))
    for kept, new in ((keys, k), (values, v)):
        kept[:, places[time, sample], sample] = new[:, time, sample]


@primitive(lambda places, *, capacity: (1, places[0], capacity, places[1]), layout=lambda out, *_others, **_params: {
    "n": prod(out), "batch": out[3]})
def cache_mask(out: Array, places: Array, *, capacity: int) -> None:
    # 1 where a token sees a place: it and those before it.  Padding sees the first place, so that no softmax is empty.
    np.less_equal(np.arange(capacity)[:, None], np.maximum(places, 0)[:, None], out=out[0], casting="unsafe")
