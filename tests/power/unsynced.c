/*
 * Loaded into a process by LD_PRELOAD, this keeps, beside each file that the process writes, what a power cut would
 * leave of it: the content at its last fsync or fdatasync.
 *
 * Files below $UNSYNCED_FROM are copied to the same path below $UNSYNCED_TO. A file that was never synced is not there.
 * Renames and deletions are taken as durable at once, as on a file system that journals its directories: so what is lost
 * is what was written and not synced. The copy takes its name when it is whole, so a process that is killed while it
 * syncs leaves the state before.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int shadow(const char *path, char *copy) {
    const char *from = getenv("UNSYNCED_FROM"), *to = getenv("UNSYNCED_TO");
    char whole[PATH_MAX];
    if (!from || !to) return 0;
    if (path[0] != '/') {  /* PostgreSQL names its files from its data folder */
        if (!getcwd(whole, sizeof whole - NAME_MAX - 2)) return 0;
        strcat(whole, "/");
        strncat(whole, path, sizeof whole - strlen(whole) - 1);
        path = whole;
    }
    if (strncmp(path, from, strlen(from)) != 0) return 0;
    return snprintf(copy, PATH_MAX, "%s%s", to, path + strlen(from)) < PATH_MAX;
}

static void keep(int fd) {
    char link[64], path[PATH_MAX], copy[PATH_MAX], part[PATH_MAX + 32], buffer[65536];
    struct stat status;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return;
    path[length] = 0;
    if (!shadow(path, copy)) return;
    for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(copy, 0700);
        *slash = '/';
    }
    snprintf(part, sizeof part, "%s.unsynced-%d", copy, getpid());
    int in = open(path, O_RDONLY), out = open(part, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ssize_t got = 0;
    int whole = in >= 0 && out >= 0;
    while (whole && (got = read(in, buffer, sizeof buffer)) > 0) whole = write(out, buffer, got) == got;
    if (in >= 0) close(in);
    if (out >= 0) close(out);
    if (whole && got == 0) {
        int (*move)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
        move(part, copy);
    }
}

int fsync(int fd) {
    int before = errno;
    keep(fd);
    errno = before;
    return 0;
}

int fdatasync(int fd) { return fsync(fd); }

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    char source[PATH_MAX], target[PATH_MAX];
    int done = real(from, to);
    int before = errno;
    if (done == 0 && shadow(from, source) && shadow(to, target)) real(source, target);
    errno = before;
    return done;
}

int unlink(const char *path) {
    int (*real)(const char *) = dlsym(RTLD_NEXT, "unlink");
    char copy[PATH_MAX];
    int done = real(path);
    int before = errno;
    if (done == 0 && shadow(path, copy)) real(copy);
    errno = before;
    return done;
}
