// The whole extension as one translation unit, so that vulkan.hpp is parsed once.  The paths are
// those of the unpacked kp sdist, which is an include directory.
#include "python/src/main.cpp"
#include "src/Algorithm.cpp"
#include "src/Core.cpp"
#include "src/Manager.cpp"
#include "src/OpAlgoDispatch.cpp"
#include "src/OpMemoryBarrier.cpp"
#include "src/OpTensorCopy.cpp"
#include "src/OpTensorSyncDevice.cpp"
#include "src/OpTensorSyncLocal.cpp"
#include "src/Sequence.cpp"
#include "src/Tensor.cpp"
