/* Calls of the system on files below a directory that fail when told to. Preloaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILES 65536

static volatile int armed, error, lasting;
static volatile long wanted, seen;
static char root[512], kind[16];
static char ours[MAX_FILES]; /* 1: opened to read, 2: opened to write */

/* From now on the n-th call of a kind fails with an error, and all later ones if `lasts`. */
void fail_call(const char *directory, const char *which, int with, long n, int lasts) {
    strncpy(root, directory, sizeof root - 1);
    strncpy(kind, which, sizeof kind - 1);
    error = with, wanted = n, lasting = lasts, seen = 0;
    __sync_synchronize();
    armed = 1;
}

/* No call fails any more. Returns how many there were. */
long stop_failing(void) {
    armed = 0;
    return seen;
}

static int fails(const char *which) {
    if (!armed || strcmp(which, kind)) return 0;
    long number = __sync_add_and_fetch(&seen, 1);
    if (lasting ? number < wanted : number != wanted) return 0;
    errno = error;
    return 1;
}

static int below(const char *path) { return armed && path && !strncmp(path, root, strlen(root)); }
static int is(int fd, int how) { return armed && fd >= 0 && fd < MAX_FILES && ours[fd] & how; }

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, name)

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, #name, const char *, int, ...); \
        mode_t mode = 0; \
        va_list rest; \
        va_start(rest, flags); \
        if (flags & (O_CREAT | O_TMPFILE)) mode = va_arg(rest, mode_t); \
        va_end(rest); \
        int writes = (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0, inside = below(path); \
        if (inside && fails(writes ? "create" : "open")) return -1; \
        int fd = real(path, flags, mode); \
        if (fd >= 0 && fd < MAX_FILES) ours[fd] = inside ? (writes ? 2 : 1) : 0; \
        return fd; \
    }
OPEN(open)
OPEN(open64)

ssize_t read(int fd, void *to, size_t size) {
    REAL(ssize_t, "read", int, void *, size_t);
    return is(fd, 3) && fails("read") ? -1 : real(fd, to, size);
}

ssize_t pread(int fd, void *to, size_t size, off_t at) {
    REAL(ssize_t, "pread", int, void *, size_t, off_t);
    return is(fd, 3) && fails("read") ? -1 : real(fd, to, size, at);
}

ssize_t pread64(int fd, void *to, size_t size, off64_t at) {
    REAL(ssize_t, "pread64", int, void *, size_t, off64_t);
    return is(fd, 3) && fails("read") ? -1 : real(fd, to, size, at);
}

ssize_t write(int fd, const void *from, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    return is(fd, 2) && fails("write") ? -1 : real(fd, from, size);
}

int close(int fd) {
    REAL(int, "close", int);
    int broken = is(fd, 2) && fails("close"), done = real(fd);
    if (fd >= 0 && fd < MAX_FILES) ours[fd] = 0;
    if (broken) errno = error;
    return broken ? -1 : done;
}

int link(const char *from, const char *to) {
    REAL(int, "link", const char *, const char *);
    return below(to) && fails("link") ? -1 : real(from, to);
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    return below(to) && fails("rename") ? -1 : real(from, to);
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    return below(path) && fails("unlink") ? -1 : real(path);
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    return below(path) && fails("mkdir") ? -1 : real(path, mode);
}
