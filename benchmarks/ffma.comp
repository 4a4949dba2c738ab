#version 450
// The FFMA peak of a device: eight independent chains of vec4 multiply-adds per invocation, all in registers.
layout(local_size_x = 256) in;
layout(set = 0, binding = 0) buffer Out { float found[]; };
layout(push_constant) uniform Push { uint loops; float factor; };

void main() {
    vec4 x = vec4(gl_LocalInvocationID.x) * 0.001, f = vec4(factor), y = vec4(0.25);
    vec4 a = x, b = x + 1.0, c = x + 2.0, d = x + 3.0, e = x + 4.0, g = x + 5.0, h = x + 6.0, k = x + 7.0;
    for (uint i = 0; i < loops; i++) {
        a = fma(a, f, y); b = fma(b, f, y); c = fma(c, f, y); d = fma(d, f, y);
        e = fma(e, f, y); g = fma(g, f, y); h = fma(h, f, y); k = fma(k, f, y);
    }
    vec4 s = a + b + c + d + e + g + h + k;
    if (s.x + s.y + s.z + s.w == -1.0) found[0] = s.x;  // never, but the compiler cannot know
}
