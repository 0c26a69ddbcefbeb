// The main of all test programs that have none of their own: GoogleTest's flags, then the test's.
#include <gflags/gflags.h>
#include <gtest/gtest.h>

#if defined(__SANITIZE_THREAD__)
// oneTBB's headers are compiled here, its library is not: what it hands from thread to thread looks like
// races where the headers touch it. Only there: what the stages of a pipeline do is looked at.
extern "C" const char* __tsan_default_suppressions() { return "race_top:oneapi/tbb/\n"; }
#endif

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  return RUN_ALL_TESTS();
}
