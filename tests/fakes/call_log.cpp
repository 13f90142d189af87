// A library for LD_PRELOAD that notes calls of the program in the file $KINTSUGI_CALL_LOG: syncs of
// files with their paths, and communicators of MPI that are made and freed. The handles of MPI are
// only passed on, so that no header of it is needed.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace {

void note(const char* text) {
  const char* const name = getenv("KINTSUGI_CALL_LOG");
  if (name == nullptr) return;
  const int file = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return;
  (void)!write(file, text, strlen(text));  // one write: several processes append
  close(file);
}

void note_sync(int descriptor) {
  char link[64], path[4096], line[4200];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  path[length < 0 ? 0 : length] = '\0';
  snprintf(line, sizeof(line), "sync %s\n", path);
  note(line);
}

template <class Function>
Function next_of(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int fsync(int descriptor) {
  note_sync(descriptor);
  return next_of<int (*)(int)>("fsync")(descriptor);
}

int fdatasync(int descriptor) {
  note_sync(descriptor);
  return next_of<int (*)(int)>("fdatasync")(descriptor);
}

int MPI_Comm_split(void* group, int color, int key, void* made) {
  note("MPI_Comm_split\n");
  return next_of<int (*)(void*, int, int, void*)>("MPI_Comm_split")(group, color, key, made);
}

int MPI_Comm_split_type(void* group, int type, int key, void* info, void* made) {
  note("MPI_Comm_split\n");
  return next_of<int (*)(void*, int, int, void*, void*)>("MPI_Comm_split_type")(group, type, key,
                                                                                info, made);
}

int MPI_Comm_free(void* group) {
  note("MPI_Comm_free\n");
  return next_of<int (*)(void*)>("MPI_Comm_free")(group);
}
}
