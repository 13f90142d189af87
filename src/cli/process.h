#pragma once

#include <exception>

namespace kintsugi {

// What a process owes the system it runs in, whichever the command.

// First of all: descriptors 0 to 2 that are closed become /dev/null, so that no file of ours gets
// one of these numbers and a message in it; a file size limit and a pipe without a reader become
// errors of the write; no live line on the terminal that mpirun pretends to be.
void prepare_process();

// Reports what ended a command, and returns its exit code: 2 for the user's mistake, 1 otherwise.
int report(const std::exception& error);

// Last of all: the exit code. It is 1 instead of 0 if standard output has not taken everything; if
// that is because nobody reads a result any more, 141, without a message.
int finish_process(int code);

}  // namespace kintsugi
