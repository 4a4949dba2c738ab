// cache_append: keys[f, places[t, b], b] = k[f, t, b], and values likewise; places that are none are left out
// keys[features, capacity, batch], values[others, capacity, batch], k[features, times, batch], v[others, times, batch],
// places[times, batch]; words are moved as integers
// grid: n invocations
#version 440
#extension GL_GOOGLE_include_directive : require
#include "index.glsl"
#include "move_alone.glsl"

layout(push_constant) uniform Args {
    uint n, features, capacity, times, batch, keys_at, values_at, k_at, v_at, places_at;
};
NUMBERS(0, , Keys, keys)
NUMBERS(1, , Values, values)
NUMBERS(2, readonly, K, k)
NUMBERS(3, readonly, V, v)
layout(set = 0, binding = 4) readonly buffer Places_ { uint places[]; };  // -1 is a large one

void main() {
    const uint i = invocation();
    if (i >= n) return;
    const uint token = i % (times * batch), feature = i / (times * batch), place = places[places_at + token];
    if (place >= capacity) return;
    const bool is_key = feature < features;
    const uint to = ((is_key ? feature : feature - features) * capacity + place) * batch + token % batch;
    if (is_key) MOVE_ALONE(keys, keys_at, to, k, k_at, i)
    else MOVE_ALONE(values, values_at, to, v, v_at, i - features * times * batch)
}
