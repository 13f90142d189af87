#pragma once

namespace kintsugi {

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

}  // namespace kintsugi

// For tests that limit the files or the memory of a process, in which the thread sanitizer's own
// writes and mappings fail. Its report says that the test was left out.
#define KINTSUGI_SKIP_UNDER_THREAD_SANITIZER() \
  if (kThreadSanitizer)                        \
  GTEST_SKIP() << "left out under the thread sanitizer, which does not work in a limited process"
