// kp's CMake build generates this header; the sdist holds the text under another name.
#pragma once
#include "src/shaders/glsl/ShaderLogisticRegression.hpp.in"
