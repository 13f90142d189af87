#pragma once

namespace kintsugi {

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif

}  // namespace kintsugi

// For tests that limit the files of a process, in which the thread sanitizer's own writes fail. Its
// report says that the test was left out.
#define KINTSUGI_SKIP_UNDER_THREAD_SANITIZER() \
  if (kThreadSanitizer)                        \
  GTEST_SKIP() << "left out under the thread sanitizer, which does not work in a limited process"

// For tests that limit the address space of a process, of which sanitizers take terabytes.
#define KINTSUGI_SKIP_UNDER_SANITIZERS()     \
  if (kThreadSanitizer || kAddressSanitizer) \
  GTEST_SKIP() << "left out under sanitizers, which need an address space without a limit"
