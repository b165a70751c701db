// Where a test finds its other files: nowhere, those that are built here have none. In place of test/util/test_util_runfiles.cc, which needs Bazel.
#include "test/util/test_util.h"

namespace gvisor {
namespace testing {
std::string RunfilePath(std::string path) { return path; }
}  // namespace testing
}  // namespace gvisor
