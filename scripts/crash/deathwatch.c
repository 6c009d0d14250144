// deathwatch: runs a command, counts every system call by which its processes write, and kills at the n-th.
//
//   deathwatch [--report FILE] [--limit SECONDS] [--role NAME=WORD]… [--death POINT:VICTIMS]…
//              [--record FILE --under DIRECTORY] -- CMD…
//
// POINT is ROLE.N (the N-th write of all processes of that role, before it is done) or @MICROSECONDS (from the start, or
// from the death before). VICTIMS are roles joined by `+`, `self` (the process that writes) or `all` (the machine: every
// process at once). Deaths happen in their order; each counts anew. A role is the first --role whose WORD stands in the
// process's command line; `outlast-guard` is `guardian`, everything else is `other`.
//
// The kernel hands each such call over before it is done (seccomp's user notification), whatever library or language made
// it, and in whichever descendant: static programs too. Events are not writes.
//
// Writes to FILE a line of JSON for each death and one for the end, and exits as the command did (128 + its signal).
//
// With --record, each write, sync, size and name of a file below DIRECTORY is recorded as well, when it begins: a `struct
// record`, a path, a second one of a rename or link, and the bytes that are written. `power.py` reads that.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "deathwatch knows x86_64 and aarch64"
#endif
#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif
#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#endif

enum { ROLES = 12, DEATHS = 16, PROCESSES = 4096, SECONDS_TO_END = 20 };

struct Call {
    int number;
    const char *name;
    // Whether its first argument is a descriptor.
    int of_descriptor;
};

static const struct Call CALLS[] = {
    {__NR_write, "write", 1},
    {__NR_writev, "writev", 1},
    {__NR_pwrite64, "pwrite", 1},
    {__NR_pwritev, "pwritev", 1},
    {__NR_pwritev2, "pwritev2", 1},
    {__NR_sendto, "send", 1},
    {__NR_sendmsg, "sendmsg", 1},
    {__NR_sendmmsg, "sendmmsg", 1},
    {__NR_sendfile, "sendfile", 1},
    {__NR_copy_file_range, "copy_file_range", 0},
    {__NR_fsync, "fsync", 1},
    {__NR_fdatasync, "fdatasync", 1},
    {__NR_sync_file_range, "sync_file_range", 1},
    {__NR_fallocate, "fallocate", 1},
    {__NR_ftruncate, "ftruncate", 1},
    {__NR_truncate, "truncate", 0},
    {__NR_renameat2, "rename", 0},
    {__NR_renameat, "rename", 0},
    {__NR_unlinkat, "unlink", 0},
    {__NR_linkat, "link", 0},
    {__NR_symlinkat, "symlink", 0},
    {__NR_mkdirat, "mkdir", 0},
#ifdef __NR_rename
    {__NR_rename, "rename", 0},
    {__NR_unlink, "unlink", 0},
    {__NR_rmdir, "rmdir", 0},
    {__NR_link, "link", 0},
    {__NR_symlink, "symlink", 0},
    {__NR_mkdir, "mkdir", 0},
#endif
    // With O_CREAT only.
    {__NR_openat, "create", 0},
};
enum { CALL_COUNT = sizeof CALLS / sizeof *CALLS };

struct Role {
    const char *name, *word;
    // Writes since the last death, and of the whole life by call.
    long writes, by_call[CALL_COUNT];
};

static struct Role roles[ROLES] = {{.name = "other"}, {.name = "guardian"}};
static int role_count = 2;

struct Death {
    // NULL: at a time.
    const char *role;
    long at;
    char *victims;
};

static struct Death deaths[DEATHS];
static int death_count, death_next;

static char **command;
static int listener = -1;
static pid_t top;
static FILE *report;
static int64_t began;

static void fail(const char *what) {
    fprintf(stderr, "deathwatch: %s: %s\n", what, strerror(errno));
    exit(125);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// Fills `text` with a file's first bytes; returns how many, or -1.
static ssize_t file_text(const char *path, char *text, size_t most) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t had = read(fd, text, most - 1);
    close(fd);
    if (had >= 0) text[had] = 0;
    return had;
}

static struct Role *role_of(pid_t pid) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    if (file_text(path, text, sizeof text) > 0 && !strcmp(text, "outlast-guard\n")) return &roles[1];
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    ssize_t had = file_text(path, text, sizeof text);
    for (ssize_t i = 0; i + 1 < had; i++)
        if (!text[i]) text[i] = ' ';
    for (int i = 2; had > 0 && i < role_count; i++)
        if (strstr(text, roles[i].word)) return &roles[i];
    return &roles[0];
}

static pid_t process_of(pid_t thread) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", thread);
    if (file_text(path, text, sizeof text) <= 0) return thread;
    char *line = strstr(text, "\nTgid:");
    return line ? atoi(line + 6) : thread;
}

// All living descendants of this process, parents first.
static int descendants(pid_t *found) {
    int count = 0;
    found[count++] = getpid();
    for (int i = 0; i < count; i++) {
        char path[64], text[65536];
        snprintf(path, sizeof path, "/proc/%d/task/%d/children", found[i], found[i]);
        // A process with threads has children of each of them.
        char tasks[64];
        snprintf(tasks, sizeof tasks, "/proc/%d/task", found[i]);
        int dir = open(tasks, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0) continue;
        char entries[8192];
        ssize_t had;
        while ((had = syscall(SYS_getdents64, dir, entries, sizeof entries)) > 0) {
            for (ssize_t at = 0; at < had;) {
                struct entry {
                    uint64_t ino;
                    int64_t off;
                    unsigned short length;
                    unsigned char type;
                    char name[];
                } *entry = (void *)(entries + at);
                at += entry->length;
                if (entry->name[0] == '.') continue;
                snprintf(path, sizeof path, "/proc/%d/task/%s/children", found[i], entry->name);
                if (file_text(path, text, sizeof text) <= 0) continue;
                for (char *word = strtok(text, " "); word && count < PROCESSES; word = strtok(NULL, " "))
                    found[count++] = atoi(word);
            }
        }
        close(dir);
    }
    // Not this one.
    memmove(found, found + 1, --count * sizeof *found);
    return count;
}

static int is_victim(const struct Role *role, const char *victims) {
    size_t length = strlen(role->name);
    for (const char *at = victims; at; at = strchr(at, '+') ? strchr(at, '+') + 1 : NULL)
        if (!strncmp(at, role->name, length) && (at[length] == '+' || !at[length])) return 1;
    return 0;
}

// Kills the victims at once; returns how many there were.
static int strike(const struct Death *death, pid_t self, const char *call, const char *target) {
    static pid_t all[PROCESSES];
    struct Role *as[PROCESSES];
    int everybody = !strcmp(death->victims, "all"), count = 0;
    if (!strcmp(death->victims, "self")) {
        all[count] = self, as[count++] = role_of(self);
    } else {
        // Stopped before they are killed, until nobody new is there: none sees another's death, and none starts another.
        for (int before = -1; before != count;) {
            before = count, count = 0;
            int living = descendants(all);
            for (int i = 0; i < living; i++) {
                struct Role *role = role_of(all[i]);
                if (!everybody && !is_victim(role, death->victims)) continue;
                all[count] = all[i], as[count++] = role;
            }
            if (count > 1)
                for (int i = 0; i < count; i++) kill(all[i], SIGSTOP);
            if (count <= 1) break;
        }
    }
    if (!count) return 0;
    int64_t at = now_ns();
    for (int i = 0; i < count; i++) kill(all[i], SIGKILL);
    fprintf(report, "{\"death\": \"%s\", \"at_ns\": %lld, \"until_ns\": %lld, \"point\": ", death->victims, (long long)at, (long long)now_ns());
    if (death->role)
        fprintf(report, "\"%s.%ld\", \"call\": \"%s\", \"target\": \"%s\"", death->role, death->at, call, target);
    else
        fprintf(report, "\"@%ld\"", death->at);
    fprintf(report, ", \"killed\": [");
    for (int i = 0; i < count; i++) fprintf(report, "%s\"%s\"", i ? ", " : "", as[i]->name);
    fprintf(report, "]}\n");
    death_next++;
    for (int i = 0; i < role_count; i++) roles[i].writes = 0;
    began = now_ns();
    return count;
}

static void *start(void *unused) {
    (void)unused;
    struct sock_filter program[16 + 2 * CALL_COUNT];
    int n = 0;
    program[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < CALL_COUNT - 1; i++) {
        program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)CALLS[i].number, 0, 1);
        program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    }
    program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_openat, 1, 0);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2]));
    program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_CREAT, 0, 1);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {.len = (unsigned short)n, .filter = program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("PR_SET_NO_NEW_PRIVS");
    // Of this thread alone, and of what it forks: the descriptor is the whole process's.
    int fd = (int)syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER,
                          SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &filter);
    if (fd < 0) fail("seccomp");
    listener = fd;
    top = fork();
    if (top < 0) fail("fork");
    if (!top) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execvp(command[0], command);
        _exit(127);
    }
    return NULL;
}

struct record {
    // w: write, d: write through, t: size, s: sync, c: create, u: remove, r: rename, n: rename to a name that is free, l: link,
    // m: directory, x: what no record tells.
    char what;
    char unused[7];
    int64_t at;
    uint32_t path, other;
    uint64_t bytes;
};

static int record_to = -1;
static const char *record_under;
enum { MOST_PARTS = 1024 };

static int is_under(const char *path) {
    size_t length = strlen(record_under);
    return !strncmp(path, record_under, length) && (path[length] == '/' || !path[length]);
}

static size_t memory_of(pid_t pid, uint64_t from, void *to, size_t length) {
    struct iovec here = {to, length}, there = {(void *)(uintptr_t)from, length};
    ssize_t had = process_vm_readv(pid, &here, 1, &there, 1, 0);
    return had < 0 ? 0 : (size_t)had;
}

// The path of a descriptor of a process, or of its directory for AT_FDCWD. A file that was removed has none.
static int path_of(pid_t pid, int fd, char *path) {
    char link[64];
    if (fd == AT_FDCWD) snprintf(link, sizeof link, "/proc/%d/cwd", pid);
    else snprintf(link, sizeof link, "/proc/%d/fd/%d", pid, fd);
    ssize_t had = readlink(link, path, PATH_MAX - 1);
    path[had < 0 ? 0 : had] = 0;
    return had > 0 && !strstr(path, " (deleted)");
}

// The path that a process names.
static int path_at(pid_t pid, int directory, uint64_t name, char *path) {
    char text[PATH_MAX] = "", base[PATH_MAX];
    // A name may end where a page does, and the next one be none of the process's.
    size_t first = 4096 - name % 4096, had = memory_of(pid, name, text, first < sizeof text ? first : sizeof text - 1);
    if (had == first && !memchr(text, 0, had) && had < sizeof text - 1) memory_of(pid, name + had, text + had, sizeof text - 1 - had);
    if (text[0] == '/') return snprintf(path, PATH_MAX, "%s", text) < PATH_MAX && is_under(path);
    return path_of(pid, directory, base) && snprintf(path, PATH_MAX, "%s/%s", base, text) < PATH_MAX && is_under(path);
}

static void record(char what, int64_t at, const char *path, const char *other, const char *bytes, size_t length) {
    struct record head = {.what = what, .at = at, .path = strlen(path), .other = other ? strlen(other) : 0, .bytes = length};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)path, head.path}, {(void *)other, head.other}, {(void *)bytes, length}};
    if (writev(record_to, parts, 4) != (ssize_t)(sizeof head + head.path + head.other + length)) fail("--record");
}

// Records a write of `count` parts at a place; at -1: where the descriptor is.
static void record_write(pid_t pid, const char *path, int fd, const struct iovec *parts, size_t count, int64_t at, int through) {
    char name[64], text[512];
    struct stat found;
    snprintf(name, sizeof name, "/proc/%d/fdinfo/%d", pid, fd);
    long flags = 0;
    long long place = 0;
    if (file_text(name, text, sizeof text) > 0) sscanf(text, "pos: %lld flags: %lo", &place, &flags);
    if (at < 0) at = flags & O_APPEND && !stat(path, &found) ? found.st_size : place;
    size_t length = 0, put = 0;
    for (size_t i = 0; i < count; i++) length += parts[i].iov_len;
    char *bytes = malloc(length + 1);
    if (!bytes) fail("a write");
    for (size_t i = 0; i < count; put += parts[i++].iov_len)
        if (memory_of(pid, (uintptr_t)parts[i].iov_base, bytes + put, parts[i].iov_len) != parts[i].iov_len) fail("a process's memory");
    record(through || flags & O_DSYNC ? 'd' : 'w', at, path, NULL, bytes, length);
    free(bytes);
}

static void record_name(char what, pid_t pid, int directory, uint64_t name, int other_directory, uint64_t other) {
    char path[PATH_MAX], second[PATH_MAX];
    int is = path_at(pid, directory, name, path), are = other && path_at(pid, other_directory, other, second);
    // What comes from elsewhere, or goes there, is none of a store's.
    if (is && (!other || are)) record(what, 0, path, other ? second : NULL, NULL, 0);
    else if (is || are) record('x', 0, is ? path : second, NULL, NULL, 0);
}

static void record_call(const struct seccomp_data *call, pid_t pid) {
    const uint64_t *a = (const uint64_t *)call->args;
    char path[PATH_MAX];
    struct stat found;
    struct iovec parts[MOST_PARTS] = {{(void *)(uintptr_t)a[1], a[2]}};
    switch (call->nr) {
#ifdef __NR_rename
    case __NR_rename: record_name('r', pid, AT_FDCWD, a[0], AT_FDCWD, a[1]); return;
    case __NR_unlink: case __NR_rmdir: record_name('u', pid, AT_FDCWD, a[0], 0, 0); return;
    case __NR_link: record_name('l', pid, AT_FDCWD, a[0], AT_FDCWD, a[1]); return;
    case __NR_mkdir: record_name('m', pid, AT_FDCWD, a[0], 0, 0); return;
    case __NR_symlink: record_name('x', pid, AT_FDCWD, a[1], 0, 0); return;
#endif
    case __NR_renameat2: record_name(a[4] & 1 ? 'n' : 'r', pid, (int)a[0], a[1], (int)a[2], a[3]); return;
    case __NR_renameat: record_name('r', pid, (int)a[0], a[1], (int)a[2], a[3]); return;
    case __NR_unlinkat: record_name('u', pid, (int)a[0], a[1], 0, 0); return;
    case __NR_linkat: record_name('l', pid, (int)a[0], a[1], (int)a[2], a[3]); return;
    case __NR_mkdirat: record_name('m', pid, (int)a[0], a[1], 0, 0); return;
    case __NR_symlinkat: record_name('x', pid, (int)a[1], a[2], 0, 0); return;
    case __NR_truncate: record_name('x', pid, AT_FDCWD, a[0], 0, 0); return;
    case __NR_openat:
        if (!path_at(pid, (int)a[0], a[1], path)) return;
        if (lstat(path, &found)) record('c', 0, path, NULL, NULL, 0);
        else if (a[2] & O_TRUNC) record('t', 0, path, NULL, NULL, 0);
        return;
    }
    if (!path_of(pid, (int)(call->nr == __NR_copy_file_range ? a[2] : a[0]), path) || !is_under(path)) return;
    switch (call->nr) {
    case __NR_write: record_write(pid, path, (int)a[0], parts, 1, -1, 0); return;
    case __NR_pwrite64: record_write(pid, path, (int)a[0], parts, 1, (int64_t)a[3], 0); return;
    case __NR_writev: case __NR_pwritev: case __NR_pwritev2:
        if (a[2] > MOST_PARTS || memory_of(pid, a[1], parts, a[2] * sizeof *parts) != a[2] * sizeof *parts) fail("a write's parts");
        record_write(pid, path, (int)a[0], parts, a[2], call->nr == __NR_writev ? -1 : (int64_t)a[3],
                     call->nr == __NR_pwritev2 && a[5] & RWF_DSYNC);
        return;
    case __NR_fsync: case __NR_fdatasync: record('s', 0, path, NULL, NULL, 0); return;
    case __NR_ftruncate: record('t', (int64_t)a[1], path, NULL, NULL, 0); return;
    case __NR_fallocate:
        if (!a[1] && !stat(path, &found) && (int64_t)(a[2] + a[3]) > found.st_size) record('t', (int64_t)(a[2] + a[3]), path, NULL, NULL, 0);
        else if (a[1]) record('x', 0, path, NULL, NULL, 0);
        return;
    case __NR_sync_file_range: return;
    default: record('x', 0, path, NULL, NULL, 0);
    }
}

// Looks at one call, lets it happen, or lets its process die before.
static void judge(struct seccomp_notif *notice) {
    int call = 0;
    while (call < CALL_COUNT - 1 && CALLS[call].number != notice->data.nr) call++;
    pid_t pid = process_of((pid_t)notice->pid);
    char target[256] = "";
    if (CALLS[call].of_descriptor) {
        char path[64], link[200];
        snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, (int)notice->data.args[0]);
        ssize_t had = readlink(path, link, sizeof link - 1);
        link[had < 0 ? 0 : had] = 0;
        char *name = strrchr(link, '/');
        snprintf(target, sizeof target, "%s", name ? name + 1 : link);
        for (char *at = target; *at; at++)
            if (*at == '"' || *at == '\\' || *at < ' ') *at = '?';
    }
    if (!strstr(target, "eventfd]")) {
        struct Role *role = role_of(pid);
        role->writes++;
        role->by_call[call]++;
        const struct Death *death = &deaths[death_next];
        if (death_next < death_count && death->role && !strcmp(death->role, role->name) && role->writes >= death->at)
            strike(death, pid, CALLS[call].name, target);
        else if (record_to >= 0)
            record_call(&notice->data, pid);
    }
    struct seccomp_notif_resp answer = {.id = notice->id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    // A process that has just been killed takes no answer.
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
}

static void add_death(char *text) {
    char *colon = strrchr(text, ':');
    char *dot = strrchr(text, '.');
    if (!colon || death_count == DEATHS) fail("--death wants POINT:VICTIMS");
    *colon = 0;
    struct Death *death = &deaths[death_count++];
    death->victims = colon + 1;
    if (text[0] == '@') {
        death->at = atol(text + 1);
    } else {
        if (!dot) fail("a POINT is ROLE.N or @MICROSECONDS");
        *dot = 0;
        death->role = text, death->at = atol(dot + 1);
    }
}

int main(int argc, char **argv) {
    const char *to = "/dev/null";
    int limit_s = 120, i = 1;
    for (; i + 1 < argc && strcmp(argv[i], "--"); i += 2) {
        char *value = argv[i + 1], *equals = strchr(value, '=');
        if (!strcmp(argv[i], "--report")) {
            to = value;
        } else if (!strcmp(argv[i], "--limit")) {
            limit_s = atoi(value);
        } else if (!strcmp(argv[i], "--role") && equals && role_count < ROLES) {
            *equals = 0;
            roles[role_count++] = (struct Role){.name = value, .word = equals + 1};
        } else if (!strcmp(argv[i], "--death")) {
            add_death(value);
        } else if (!strcmp(argv[i], "--record")) {
            if ((record_to = open(value, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) < 0) fail(value);
        } else if (!strcmp(argv[i], "--under")) {
            record_under = value;
        } else {
            errno = EINVAL;
            fail(argv[i]);
        }
    }
    if (i + 1 >= argc || (record_to >= 0 && !record_under)) errno = EINVAL, fail("no command, or no --under");
    command = argv + i + 1;
    if (!(report = fopen(to, "we"))) fail(to);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) fail("PR_SET_CHILD_SUBREAPER");
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    int ended = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
    pthread_t thread;
    if (pthread_create(&thread, NULL, start, NULL)) fail("pthread_create");
    pthread_join(thread, NULL);
    // Faster, where the kernel has it.
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, 1UL);

    int status = 0, top_ended = 0, hung = 0, left = 0;
    int64_t first = began = now_ns(), deadline = first + limit_s * 1000000000LL;
    struct pollfd waits[2] = {{.fd = listener, .events = POLLIN}, {.fd = ended, .events = POLLIN}};
    for (;;) {
        const struct Death *death = &deaths[death_next];
        int timed = death_next < death_count && !death->role;
        int64_t due = began + (timed ? death->at * 1000 : 0), wait = timed ? due - now_ns() : 200000000LL;
        // A victim that is not there yet is waited for.
        struct timespec pause = {.tv_sec = 0, .tv_nsec = wait < 1000000 ? 1000000 : wait > 200000000LL ? 200000000LL : wait};
        if (ppoll(waits, 2, &pause, NULL) < 0 && errno != EINTR) fail("poll");
        if (waits[1].revents) {
            struct signalfd_siginfo info;
            while (read(ended, &info, sizeof info) > 0) continue;
        }
        pid_t pid;
        int how;
        while ((pid = waitpid(-1, &how, WNOHANG)) > 0)
            if (pid == top) {
                status = how, top_ended = 1;
                int64_t soon = now_ns() + SECONDS_TO_END * 1000000000LL;
                if (soon < deadline) deadline = soon;
            }
        if (pid < 0 && errno == ECHILD) break;
        if (waits[0].revents & POLLIN) {
            struct seccomp_notif notice;
            memset(&notice, 0, sizeof notice);
            if (!ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &notice)) judge(&notice);
        } else if (waits[0].revents & POLLHUP) {
            waits[0].fd = -1;
        }
        if (timed && now_ns() >= due) strike(death, 0, "", "");
        if (now_ns() > deadline) {
            static pid_t all[PROCESSES];
            if (top_ended) left = 1;
            else hung = 1;
            int count = descendants(all);
            for (int k = 0; k < count; k++) kill(all[k], SIGKILL);
            deadline = now_ns() + 1000000000LL;
        }
    }
    fprintf(report, "{\"hung\": %s, \"left\": %s, \"elapsed_ns\": %lld, \"writes\": {", hung ? "true" : "false", left ? "true" : "false",
            (long long)(now_ns() - first));
    // Several calls may have one name: their writes stand at the first.
    for (int r = 0, told = 0; r < role_count; r++)
        for (int c = 0; c < CALL_COUNT; c++) {
            int first = 0;
            while (strcmp(CALLS[first].name, CALLS[c].name)) first++;
            long count = 0;
            for (int other = c; first == c && other < CALL_COUNT; other++)
                count += strcmp(CALLS[other].name, CALLS[c].name) ? 0 : roles[r].by_call[other];
            if (count) fprintf(report, "%s\"%s %s\": %ld", told++ ? ", " : "", roles[r].name, CALLS[c].name, count);
        }
    fprintf(report, "}}\n");
    fclose(report);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
