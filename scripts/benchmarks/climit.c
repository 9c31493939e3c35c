/* The floor: two threads copy listed files into tar-shaped output through a 1 MiB slab each. Nothing is hashed, indexed
   or checked. usage: climit LIST ROOT OUT THREADS; LIST has "size path\n" lines in the order to be packed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLAB = 1 << 20, BLOCK = 512 };
typedef struct { char *path; size_t size; } Entry;
static Entry *entries;
static size_t num_entries;
static int num_threads, root_fd;
static const char *out_path;

static void put_header(char *at, const char *path, size_t size) {
    memset(at, 0, BLOCK);
    strncpy(at, path, 100);
    memcpy(at + 100, "0000644\0000000000\0000000000", 24);
    snprintf(at + 124, 12, "%011zo", size);
    memcpy(at + 136, "00000000000", 11);
    memset(at + 148, ' ', 8);
    at[156] = '0';
    memcpy(at + 257, "ustar\00000", 8);
    unsigned sum = 0;
    for (int i = 0; i < BLOCK; i++) sum += (unsigned char)at[i];
    snprintf(at + 148, 8, "%06o", sum);
    at[155] = ' ';
}

static void flush(int fd, const char *slab, size_t used) {
    while (used) {
        ssize_t n = write(fd, slab, used);
        if (n < 0) { perror("write"); exit(1); }
        slab += n; used -= (size_t)n;
    }
}

static void *work(void *arg) {
    size_t me = (size_t)arg, first = num_entries * me / num_threads, last = num_entries * (me + 1) / num_threads, used = 0;
    char name[4096];
    snprintf(name, sizeof name, "%s/%zu.tar", out_path, me);
    int out = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    char *slab = aligned_alloc(4096, SLAB);
    for (size_t i = first; i < last; i++) {
        size_t size = entries[i].size, need = BLOCK + (size + BLOCK - 1) / BLOCK * BLOCK;
        if (used + need > SLAB) { flush(out, slab, used); used = 0; }
        int fd = openat(root_fd, entries[i].path, O_RDONLY);
        if (fd < 0) { perror(entries[i].path); exit(1); }
        put_header(slab + used, entries[i].path, size);
        if (need <= SLAB) {
            if (size && read(fd, slab + used + BLOCK, size) != (ssize_t)size) exit(1);
            memset(slab + used + BLOCK + size, 0, need - BLOCK - size);
            used += need;
        } else {
            flush(out, slab, BLOCK);
            for (size_t left = size; left;) {
                ssize_t n = read(fd, slab, left < SLAB ? left : SLAB);
                if (n <= 0) exit(1);
                flush(out, slab, (size_t)n);
                left -= (size_t)n;
            }
            memset(slab, 0, BLOCK);
            flush(out, slab, need - BLOCK - size);
        }
        close(fd);
    }
    flush(out, slab, used);
    close(out);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    FILE *list = fopen(argv[1], "r");
    root_fd = open(argv[2], O_RDONLY | O_DIRECTORY);
    out_path = argv[3];
    num_threads = atoi(argv[4]);
    size_t room = 0, size, length = 0;
    char *line = NULL;
    ssize_t n;
    while ((n = getline(&line, &length, list)) > 0) {
        if (num_entries == room) entries = realloc(entries, (room = room ? room * 2 : 1024) * sizeof *entries);
        line[n - 1] = 0;
        char *space = strchr(line, ' ');
        sscanf(line, "%zu", &size);
        entries[num_entries++] = (Entry){strdup(space + 1), size};
    }
    pthread_t threads[64];
    for (long i = 0; i < num_threads; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    for (long i = 0; i < num_threads; i++) pthread_join(threads[i], NULL);
    return 0;
}
