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

// For loops over damaged inputs: a tenth is enough where each is also checked by a sanitizer.
constexpr int fewer_under_sanitizers(int count) {
  return kThreadSanitizer || kAddressSanitizer ? count / 10 : count;
}

}  // namespace kintsugi

// For tests that limit the files of a process: the thread sanitizer's own writes fail then.
#define KINTSUGI_SKIP_UNDER_THREAD_SANITIZER() \
  if (kThreadSanitizer)                        \
  GTEST_SKIP() << "skipped under the thread sanitizer, which does not work in a limited process"

// For tests that limit the address space of a process: sanitizers use terabytes of it.
#define KINTSUGI_SKIP_UNDER_SANITIZERS()     \
  if (kThreadSanitizer || kAddressSanitizer) \
  GTEST_SKIP() << "skipped under sanitizers, which need an unlimited address space"
