#pragma once

// Asynchronous copies of 16 bytes from global to shared memory (cp.async). They arrive as late as
// they may, when they are waited for; until then the target holds bytes 0xff. So a wait that is
// missing shows.
namespace kintsugi::emulator {

// `present` false: writes zeros and reads nothing.
void copy_async(void* to, const void* from, bool present);
// Ends a group of this thread's copies.
void commit_copies();
// Waits until at most `left` groups of this thread are under way.
void wait_for_copies(int left);

}  // namespace kintsugi::emulator
