// What others call of the threads in cpu_team.c.
#include <stdint.h>

// Runs part(work, i) for each i in [0, parts), on this thread and on up to threads - 1 helpers.
void team_run(void (*part)(const void *work, int64_t index), const void *work, int64_t parts, int threads);

// Nanoseconds that callers have taken to wake helpers and to wait for them, and those of them that they slept.
void team_waited(int64_t *all, int64_t *asleep);
