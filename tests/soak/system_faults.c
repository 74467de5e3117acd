/* Fail one file system call below a directory, for tests: a library that is preloaded.
 *
 * The test arms it from within the process (`soak_arm`), runs an operation, and disarms it. Calls
 * are counted by kind; the one with the chosen number fails with an error, or reads one byte only.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define MAX_FDS 65536
#define SHORT_READ (-1)

static char root[4096];
static char wanted[32];
static volatile int armed;
static volatile int error_number;
static volatile int persistent;
static volatile long number;
static volatile long count;
static volatile char below_root[MAX_FDS];

/* Arm: calls of the kind `call` ("read", "write", "open", "rename", "fsync", "unlink") below
 * `directory` are counted; the `nth` fails with `error` (SHORT_READ: reads one byte). With
 * `and_later`, all later ones fail as well. An `nth` of 0 only counts. */
void soak_arm(const char *directory, const char *call, int error, long nth, int and_later)
{
    strncpy(root, directory, sizeof root - 1);
    strncpy(wanted, call, sizeof wanted - 1);
    error_number = error;
    number = nth;
    persistent = and_later;
    count = 0;
    __sync_synchronize();
    armed = 1;
}

/* Disarm; the number of calls that were counted. */
long soak_disarm(void)
{
    armed = 0;
    return count;
}

static int is_below(const char *path)
{
    return armed && path && strncmp(path, root, strlen(root)) == 0;
}

/* Count one call; whether it is to fail. */
static int strikes(const char *call)
{
    if (!armed || strcmp(call, wanted) != 0)
        return 0;
    long position = __sync_add_and_fetch(&count, 1);
    if (number <= 0 || !(position == number || (persistent && position > number)))
        return 0;
    if (error_number != SHORT_READ)
        errno = error_number;
    return 1;
}

static int is_watched(int fd)
{
    return armed && fd >= 0 && fd < MAX_FDS && below_root[fd];
}

#define REAL(result, name, ...)                                                                    \
    static result (*real)(__VA_ARGS__);                                                            \
    if (!real)                                                                                     \
    real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static int remember(int fd, int watched)
{
    if (fd >= 0 && fd < MAX_FDS)
        below_root[fd] = (char)watched;
    return fd;
}

#define DEFINE_OPEN(name)                                                                          \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        REAL(int, #name, const char *, int, ...);                                                  \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0;                  \
        va_end(rest);                                                                              \
        int watched = is_below(path);                                                              \
        if (watched && strikes("open"))                                                            \
            return -1;                                                                             \
        return remember(real(path, flags, mode), watched);                                         \
    }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

#define DEFINE_OPENAT(name)                                                                        \
    int name(int directory, const char *path, int flags, ...)                                      \
    {                                                                                              \
        REAL(int, #name, int, const char *, int, ...);                                             \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0;                  \
        va_end(rest);                                                                              \
        int watched = is_below(path);                                                              \
        if (watched && strikes("open"))                                                            \
            return -1;                                                                             \
        return remember(real(directory, path, flags, mode), watched);                              \
    }
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

ssize_t read(int fd, void *to, size_t size)
{
    REAL(ssize_t, "read", int, void *, size_t);
    if (is_watched(fd) && strikes("read")) {
        if (error_number != SHORT_READ)
            return -1;
        size = size > 1 ? 1 : size;
    }
    return real(fd, to, size);
}

#define DEFINE_PREAD(name, offset_type)                                                            \
    ssize_t name(int fd, void *to, size_t size, offset_type offset)                                \
    {                                                                                              \
        REAL(ssize_t, #name, int, void *, size_t, offset_type);                                    \
        if (is_watched(fd) && strikes("read")) {                                                   \
            if (error_number != SHORT_READ)                                                        \
                return -1;                                                                         \
            size = size > 1 ? 1 : size;                                                            \
        }                                                                                          \
        return real(fd, to, size, offset);                                                         \
    }
DEFINE_PREAD(pread, off_t)
DEFINE_PREAD(pread64, off64_t)

ssize_t write(int fd, const void *from, size_t size)
{
    REAL(ssize_t, "write", int, const void *, size_t);
    if (is_watched(fd) && strikes("write"))
        return -1;
    return real(fd, from, size);
}

int fsync(int fd)
{
    REAL(int, "fsync", int);
    return is_watched(fd) && strikes("fsync") ? -1 : real(fd);
}

int close(int fd)
{
    REAL(int, "close", int);
    remember(fd, 0);
    return real(fd);
}

int rename(const char *from, const char *to)
{
    REAL(int, "rename", const char *, const char *);
    return is_below(to) && strikes("rename") ? -1 : real(from, to);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned int flags)
{
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned int);
    return is_below(to) && strikes("rename") ? -1 : real(from_fd, from, to_fd, to, flags);
}

int link(const char *from, const char *to)
{
    REAL(int, "link", const char *, const char *);
    return is_below(to) && strikes("rename") ? -1 : real(from, to);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    REAL(int, "linkat", int, const char *, int, const char *, int);
    return is_below(to) && strikes("rename") ? -1 : real(from_fd, from, to_fd, to, flags);
}

int unlink(const char *path)
{
    REAL(int, "unlink", const char *);
    return is_below(path) && strikes("unlink") ? -1 : real(path);
}
