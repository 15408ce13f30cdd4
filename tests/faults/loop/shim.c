/* Fail the Nth file operation below one folder, in this process and all its children; or let the
 * wall clock jump at that moment.
 *
 * Loaded by LD_PRELOAD. The state is a file that is mapped shared, so that one counter serves all
 * processes; its layout is `struct state` here and `Shim` in shim.py. Calls that libc makes within
 * itself (the writes of stdio, for one) are not seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SHORT_WRITE = 1000, KILL = 1001, JUMP = 1002 };
enum { WRITE = 1, SYNC = 2, RENAME = 4, CREATE = 8, REMOVE = 16 };

struct state {
    int64_t seen;    /* matching operations so far */
    int64_t fail_at; /* the first that fails, from 1; 0: none does */
    int64_t fired;   /* how many failed */
    int64_t jump_s;  /* of the wall clock, for JUMP */
    int64_t ahead_s; /* what the wall clock shows too much, from then on */
    int64_t each[5]; /* operations below the root: WRITE, SYNC, RENAME, CREATE, REMOVE */
    int32_t kind;    /* an errno, SHORT_WRITE, KILL or JUMP */
    int32_t mask;    /* which operations count */
    int32_t sticky;  /* all later ones fail, too */
    int32_t length;  /* of root */
    char root[1024];
    char last[1024]; /* what failed, for the report */
};

static struct state *shared;
static int names = -1; /* of shared memory that was made, one a line */

__attribute__((constructor)) static void begin(void) {
    const char *log = getenv("IOBENCH_FAULT_NAMES");
    if (log) names = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    const char *path = getenv("IOBENCH_FAULT_STATE");
    if (!path) return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *place = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (place != MAP_FAILED) shared = place;
}

static int below(const char *path) {
    return path[0] && !strncmp(path, shared->root, shared->length) &&
           (path[shared->length] == '/' || !path[shared->length]);
}

static int of_fd(int fd, char *out) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, out, PATH_MAX - 1);
    if (n < 0) return 0;
    out[n] = 0;
    return 1;
}

static int of_path(int dir, const char *path, char *out) {
    if (path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
        return 1;
    }
    char base[PATH_MAX];
    if (dir == AT_FDCWD ? !getcwd(base, sizeof base) : !of_fd(dir, base)) return 0;
    return snprintf(out, PATH_MAX, "%s/%s", base, path) < PATH_MAX;
}

/* Whether this operation fails: an errno, SHORT_WRITE, or 0. Does not return for KILL. */
static int decide(int what, const char *path, const char *name) {
    if (!shared || !shared->fail_at || !below(path)) return 0;
    __atomic_add_fetch(&shared->each[__builtin_ctz(what)], 1, __ATOMIC_SEQ_CST);
    if (!(shared->mask & what)) return 0;
    int64_t number = __atomic_add_fetch(&shared->seen, 1, __ATOMIC_SEQ_CST);
    if (number < shared->fail_at || (number > shared->fail_at && !shared->sticky)) return 0;
    if (__atomic_add_fetch(&shared->fired, 1, __ATOMIC_SEQ_CST) == 1)
        snprintf(shared->last, sizeof shared->last, "%s %.900s", name, path);
    if (shared->kind == KILL) {
        kill(getpid(), SIGKILL);
        pause();
    }
    if (shared->kind == JUMP) {
        shared->ahead_s = shared->jump_s;
        return 0;
    }
    return shared->kind;
}

static int by_fd(int what, int fd, const char *name) {
    char path[PATH_MAX];
    if (!shared || !shared->fail_at || !of_fd(fd, path)) return 0;
    return decide(what, path, name);
}

static int by_path(int what, int dir, const char *given, const char *name) {
    char path[PATH_MAX];
    if (!shared || !shared->fail_at || !given || !of_path(dir, given, path)) return 0;
    return decide(what, path, name);
}

#define REAL(type, name, ...)                                                                      \
    static type (*real)(__VA_ARGS__);                                                              \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)
#define REFUSE(code)                                                                               \
    do {                                                                                           \
        errno = (code);                                                                            \
        return -1;                                                                                 \
    } while (0)

static size_t half(size_t size) { return size > 1 ? size / 2 : size; }

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    int found = by_fd(WRITE, fd, "write");
    if (found && found != SHORT_WRITE) REFUSE(found);
    return real(fd, data, found ? half(size) : size);
}

/* Direct writes must stay aligned, so a short one ends at a multiple of 4096 bytes. */
static size_t shorter(size_t size) { return size > 8192 ? size / 2 / 4096 * 4096 : size; }

#define PWRITE(function)                                                                           \
    ssize_t function(int fd, const void *data, size_t size, off_t offset) {                        \
        REAL(ssize_t, #function, int, const void *, size_t, off_t);                                \
        int found = by_fd(WRITE, fd, #function);                                                   \
        if (found && found != SHORT_WRITE) REFUSE(found);                                          \
        return real(fd, data, found ? shorter(size) : size, offset);                               \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    int found = by_fd(WRITE, fd, "writev");
    if (found && found != SHORT_WRITE) REFUSE(found);
    return real(fd, parts, found ? 1 : count);
}

#define ON_FD(function, what)                                                                      \
    int function(int fd) {                                                                         \
        REAL(int, #function, int);                                                                 \
        int found = by_fd(what, fd, #function);                                                    \
        if (found && found != SHORT_WRITE) REFUSE(found);                                          \
        return real(fd);                                                                           \
    }
ON_FD(fsync, SYNC)
ON_FD(fdatasync, SYNC)
ON_FD(syncfs, SYNC)

#define TRUNCATE(function)                                                                         \
    int function(int fd, off_t size) {                                                             \
        REAL(int, #function, int, off_t);                                                          \
        int found = by_fd(WRITE, fd, #function);                                                   \
        if (found && found != SHORT_WRITE) REFUSE(found);                                          \
        return real(fd, size);                                                                     \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define ALLOCATE(function)                                                                         \
    int function(int fd, off_t offset, off_t size) {                                               \
        REAL(int, #function, int, off_t, off_t);                                                   \
        int found = by_fd(WRITE, fd, #function);                                                   \
        if (found && found != SHORT_WRITE) return found; /* returns its error */                   \
        return real(fd, offset, size);                                                             \
    }
ALLOCATE(posix_fallocate)
ALLOCATE(posix_fallocate64)

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    int found = by_path(RENAME, AT_FDCWD, to, "rename");
    if (found && found != SHORT_WRITE) REFUSE(found);
    return real(from, to);
}

int renameat(int a, const char *from, int b, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    int found = by_path(RENAME, b, to, "renameat");
    if (found && found != SHORT_WRITE) REFUSE(found);
    return real(a, from, b, to);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    int found = by_path(RENAME, b, to, "renameat2");
    if (found && found != SHORT_WRITE) REFUSE(found);
    return real(a, from, b, to, flags);
}

int link(const char *from, const char *to) {
    REAL(int, "link", const char *, const char *);
    int found = by_path(RENAME, AT_FDCWD, to, "link");
    if (found && found != SHORT_WRITE) REFUSE(found);
    return real(from, to);
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    int found = by_path(REMOVE, AT_FDCWD, path, "unlink");
    if (found && found != SHORT_WRITE) REFUSE(found);
    return real(path);
}

int unlinkat(int dir, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    int found = by_path(REMOVE, dir, path, "unlinkat");
    if (found && found != SHORT_WRITE) REFUSE(found);
    return real(dir, path, flags);
}

int rmdir(const char *path) {
    REAL(int, "rmdir", const char *);
    int found = by_path(REMOVE, AT_FDCWD, path, "rmdir");
    if (found && found != SHORT_WRITE) REFUSE(found);
    return real(path);
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    int found = by_path(CREATE, AT_FDCWD, path, "mkdir");
    if (found && found != SHORT_WRITE) REFUSE(found);
    return real(path, mode);
}

int mkdirat(int dir, const char *path, mode_t mode) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    int found = by_path(CREATE, dir, path, "mkdirat");
    if (found && found != SHORT_WRITE) REFUSE(found);
    return real(dir, path, mode);
}

static void note_name(const char *path) {
    char line[NAME_MAX + 16];
    int size = snprintf(line, sizeof line, "%s\n", path);
    if (names >= 0 && size < (int)sizeof line && write(names, line, size) < 0) abort();
}

int shm_open(const char *name, int flags, mode_t mode) {
    REAL(int, "shm_open", const char *, int, mode_t);
    if (flags & O_CREAT) note_name(name[0] == '/' ? name + 1 : name);
    return real(name, flags, mode);
}

#define MODE_OF(flags)                                                                             \
    mode_t mode = 0;                                                                               \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                       \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode = va_arg(rest, mode_t);                                                               \
        va_end(rest);                                                                              \
    }

#define OPEN(function)                                                                             \
    int function(const char *path, int flags, ...) {                                               \
        MODE_OF(flags)                                                                             \
        REAL(int, #function, const char *, int, ...);                                              \
        if (flags & O_CREAT && !strncmp(path, "/dev/shm/", 9)) note_name(path + 9);                \
        int found = flags & O_CREAT ? by_path(CREATE, AT_FDCWD, path, #function) : 0;              \
        if (found && found != SHORT_WRITE) REFUSE(found);                                          \
        return real(path, flags, mode);                                                            \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(function)                                                                           \
    int function(int dir, const char *path, int flags, ...) {                                      \
        MODE_OF(flags)                                                                             \
        REAL(int, #function, int, const char *, int, ...);                                         \
        int found = flags & O_CREAT ? by_path(CREATE, dir, path, #function) : 0;                   \
        if (found && found != SHORT_WRITE) REFUSE(found);                                          \
        return real(dir, path, flags, mode);                                                       \
    }
OPENAT(openat)
OPENAT(openat64)

/* The wall clock. CLOCK_MONOTONIC is left alone, and so are the times of files. */

int clock_gettime(clockid_t which, struct timespec *now) {
    REAL(int, "clock_gettime", clockid_t, struct timespec *);
    int code = real(which, now);
    if (shared && !code && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        now->tv_sec += shared->ahead_s;
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    REAL(int, "gettimeofday", struct timeval *restrict, void *restrict);
    int code = real(now, zone);
    if (shared && !code) now->tv_sec += shared->ahead_s;
    return code;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

/* The kernel compares with its own clock, which has not jumped. */
int sem_timedwait(sem_t *restrict what, const struct timespec *restrict until) {
    REAL(int, "sem_timedwait", sem_t *restrict, const struct timespec *restrict);
    struct timespec at = *until;
    if (shared) at.tv_sec -= shared->ahead_s;
    return real(what, &at);
}
