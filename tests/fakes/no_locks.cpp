// A library for LD_PRELOAD: a file system that has no locks.
#include <errno.h>

extern "C" int flock(int, int) {
  errno = ENOLCK;
  return -1;
}
