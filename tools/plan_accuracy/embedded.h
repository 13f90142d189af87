#pragma once

#include "plan/machines/descriptions.h"

namespace kintsugi {

// The files of programs/ and machines/.
const Descriptions& embedded_programs();
const Descriptions& embedded_measured_machines();

}  // namespace kintsugi
