// Threads that share one job after another: see cpu_team.c.
#include <stdint.h>

// Runs part(work, i) for each i in [0, parts), on this thread and on up to threads - 1 helpers.
void team_run(void (*part)(const void *work, int64_t index), const void *work, int64_t parts, int threads);
