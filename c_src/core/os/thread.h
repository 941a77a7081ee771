/* Threads, mutexes, condition variables and one-time initialization: POSIX threads without the calls that differ
 * between systems. */
#ifndef XT_OS_THREAD_H
#define XT_OS_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Starts a detached thread. Returns false if it could not be created. */
bool xt_thread_start(void *(*run)(void *argument), void *argument);

/* Starts a thread that must be joined. Returns false if it could not be created. */
typedef pthread_t xt_thread;
bool xt_thread_start_joinable(xt_thread *thread, void *(*run)(void *argument), void *argument);

/* Waits until the thread has ended. */
void xt_thread_join(xt_thread thread);

/* Sets the name of the calling thread, which debuggers and `top -H` show. At most 15 characters. */
void xt_thread_set_name(const char *name);

/* Yields the CPU once. */
void xt_thread_yield(void);

/* ---- Mutexes ---- */

typedef pthread_mutex_t xt_mutex;
#define XT_MUTEX_INIT PTHREAD_MUTEX_INITIALIZER

static inline void xt_mutex_init(xt_mutex *mutex) { pthread_mutex_init(mutex, NULL); }
static inline void xt_mutex_lock(xt_mutex *mutex) { pthread_mutex_lock(mutex); }
static inline void xt_mutex_unlock(xt_mutex *mutex) { pthread_mutex_unlock(mutex); }
static inline void xt_mutex_destroy(xt_mutex *mutex) { pthread_mutex_destroy(mutex); }

/* ---- Condition variables ---- */

typedef pthread_cond_t xt_condition;

void xt_condition_init(xt_condition *condition);
static inline void xt_condition_broadcast(xt_condition *condition) { pthread_cond_broadcast(condition); }
static inline void xt_condition_destroy(xt_condition *condition) { pthread_cond_destroy(condition); }

/* Waits for a broadcast until xt_clock_ns() reaches the deadline. Returns false if it has. The mutex must be locked. */
bool xt_condition_wait_until(xt_condition *condition, xt_mutex *mutex, int64_t deadline_ns);

/* ---- One-time initialization ---- */

typedef pthread_once_t xt_once;
#define XT_ONCE_INIT PTHREAD_ONCE_INIT

static inline void xt_once_run(xt_once *once, void (*run)(void)) { pthread_once(once, run); }

#endif
