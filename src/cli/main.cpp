#include "cli/commands.h"
#include "cli/process.h"

int main(int argc, char** argv) {
  kintsugi::prepare_process();
  return kintsugi::finish_process(kintsugi::run_command_line(argc, argv));
}
