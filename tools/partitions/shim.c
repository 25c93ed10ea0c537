/* Preloaded into the processes of a machine (LD_PRELOAD): its wall clock may be wrong, and its disk slow.
 *
 * The machine's control file is mapped into each of them, so a fault begins and ends while they run; they count here
 * what it met. Kernels have no wall clock for each namespace, and their slow disks need devices that not every machine
 * has.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    int64_t ahead_ns;   /* how far the wall clock is ahead; negative: behind */
    int64_t delay_us;   /* how long each write and each sync takes longer */
    int64_t clock_read; /* how often a wrong clock was read */
    int64_t delayed;    /* how many writes and syncs were delayed */
    int64_t refused;    /* how many writes found the disk full */
};

static struct control nothing, *control = &nothing;

__attribute__((constructor)) static void open_control(void) {
    const char *path = getenv("PARTITIONS_CONTROL");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED) control = found;
    close(fd);
}

static void count(int64_t *counter) { __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED); }

static int64_t shift(void) {
    int64_t ahead = __atomic_load_n(&control->ahead_ns, __ATOMIC_RELAXED);
    if (ahead) count(&control->clock_read);
    return ahead;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t all = now->tv_nsec + shift() % 1000000000, seconds = shift() / 1000000000;
        if (all < 0) { all += 1000000000; seconds--; }
        now->tv_sec += seconds + all / 1000000000;
        now->tv_nsec = all % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (where) *where = found.tv_sec;
    return found.tv_sec;
}

static void wait_for_disk(int fd) {
    int64_t delay = __atomic_load_n(&control->delay_us, __ATOMIC_RELAXED);
    struct stat about;
    if (!delay || fstat(fd, &about) || !S_ISREG(about.st_mode)) return;
    struct timespec left = {delay / 1000000, delay % 1000000 * 1000};
    count(&control->delayed);
    while (nanosleep(&left, &left) && errno == EINTR) {}
}

static ssize_t told(ssize_t result) {
    if (result < 0 && errno == ENOSPC) count(&control->refused);
    return result;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *from, size_t size) {
    wait_for_disk(fd);
    return told(syscall(SYS_write, fd, from, size));
}

ssize_t writev(int fd, const struct iovec *from, int parts) { REAL(writev); wait_for_disk(fd); return told(real(fd, from, parts)); }
ssize_t pwrite(int fd, const void *from, size_t size, off_t at) { REAL(pwrite); wait_for_disk(fd); return told(real(fd, from, size, at)); }
ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at) { REAL(pwrite64); wait_for_disk(fd); return told(real(fd, from, size, at)); }
ssize_t pwritev(int fd, const struct iovec *from, int parts, off_t at) { REAL(pwritev); wait_for_disk(fd); return told(real(fd, from, parts, at)); }
int fsync(int fd) { REAL(fsync); wait_for_disk(fd); return told(real(fd)); }
int fdatasync(int fd) { REAL(fdatasync); wait_for_disk(fd); return told(real(fd)); }
int posix_fallocate(int fd, off_t at, off_t size) {
    REAL(posix_fallocate);
    int error = real(fd, at, size);
    if (error == ENOSPC) count(&control->refused);
    return error;
}
