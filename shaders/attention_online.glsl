// The softmax of rows whose scores come a tile at a time: what was summed up shrinks when a larger score turns up.
// A NaN that max() drops still reaches the sum, and so the whole row.
// What the 8 invocations of each row have found is in `slices`, of which nobody has need then.
shared vec4 largest[ROWS / 4];    // of each row: the largest score so far
shared vec4 shrink[ROWS / 4];     // and what the sums made before are to be multiplied with

vec4 base(vec4 most) { return mix(most, vec4(0.0), equal(most, vec4(-INFINITY))); }
vec4 ieee_exps(vec4 x) { return vec4(ieee_exp(x.x), ieee_exp(x.y), ieee_exp(x.z), ieee_exp(x.w)); }

void start() {
    if (gl_LocalInvocationID.x < ROWS / 4) largest[gl_LocalInvocationID.x] = vec4(-INFINITY);
}

// Scores become exponentials; `total` holds this invocation's shares of the sums of its rows.
void exponentials(inout mat4 w, inout vec4 total) {
    const uint me = gl_LocalInvocationID.x, r = row() / 4;
    const mat4 turned = transpose(w);
    slices[me % 8 * ROWS / 4 + r] = max(max(turned[0], turned[1]), max(turned[2], turned[3]));
    barrier();
    if (me < ROWS / 4) {
        const vec4 before = largest[me];
        vec4 most = before;
        for (uint i = 0; i < 8; i++) most = max(most, slices[i * ROWS / 4 + me]);
        largest[me] = most;
        shrink[me] = ieee_exps(before - base(most));
    }
    barrier();
    const vec4 most = base(largest[r]);
    total *= shrink[r];
    for (uint c = 0; c < 4; c++) {
        w[c] = ieee_exps(w[c] - most[c]);
        total[c] += dot(w[c], vec4(1.0));
    }
}

void shrink_sums(inout mat4 sums[blocks]) {
    const vec4 factor = shrink[row() / 4];
    [[unroll]] for (uint b = 0; b < blocks; b++) {
        for (uint c = 0; c < 4; c++) sums[b][c] *= factor[c];
    }
}

// All shares together.
vec4 added(vec4 total) {
    barrier();
    slices[gl_LocalInvocationID.x % 8 * ROWS / 4 + row() / 4] = total;
    barrier();
    vec4 all = vec4(0.0);
    for (uint i = 0; i < 8; i++) all += slices[i * ROWS / 4 + row() / 4];
    return all;
}

// Joins sums with those of earlier pieces, of which `before` are the logarithms of sums of exponentials.  What these
// made is to be multiplied with `shrink`.
void join(inout mat4 sums[blocks], inout vec4 total, inout vec4 most, vec4 before) {
    const vec4 joined = max(most, before), old = ieee_exps(before - base(joined));
    const vec4 factor = ieee_exps(most - base(joined));
    [[unroll]] for (uint b = 0; b < blocks; b++) {
        for (uint c = 0; c < 4; c++) sums[b][c] *= factor[c];
    }
    total = total * factor + old;
    most = joined;
    barrier();  // all have read `largest` and what was before
    if (column() == 0) shrink[row() / 4] = old / (total + vec4(equal(total, vec4(0.0))));
}
