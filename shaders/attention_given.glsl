// What the gradients of attention are given, from binding GIVEN on.
layout(set = 0, binding = GIVEN) readonly buffer Q_ { float q[]; };
layout(set = 0, binding = GIVEN) readonly buffer QQuads_ { vec4 q_quads[]; };
layout(set = 0, binding = GIVEN + 1) readonly buffer K_ { float k[]; };
layout(set = 0, binding = GIVEN + 1) readonly buffer KQuads_ { vec4 k_quads[]; };
layout(set = 0, binding = GIVEN + 2) readonly buffer V_ { float v[]; };
layout(set = 0, binding = GIVEN + 2) readonly buffer VQuads_ { vec4 v_quads[]; };
layout(set = 0, binding = GIVEN + 3) readonly buffer G_ { float g[]; };
layout(set = 0, binding = GIVEN + 3) readonly buffer GQuads_ { vec4 g_quads[]; };
layout(set = 0, binding = GIVEN + 4) readonly buffer Lse_ { float lse[]; };
layout(set = 0, binding = GIVEN + 5) readonly buffer Delta_ { float delta[]; };
layout(set = 0, binding = GIVEN + 6) readonly buffer Key_ { uint key[]; };
