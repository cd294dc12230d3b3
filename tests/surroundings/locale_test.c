/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that has chosen a locale: words of parameters are the same there (I and i are two letters in Turkish),
 * and files of comma-separated values have no comma in a number (as German numbers have).
 */
#include <kolo/engine.h>

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SKIP 77

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, kolo_get_last_error(NULL));
    return 1;
}

/* Runs an engine of one rank whose autotune tries two settings. */
static int run_engine(void)
{
    static float x[16];
    int64_t shape[1] = {16}, handle;
    kolo_tensor_t tensor = {"t", KOLO_FLOAT32, 1, shape, x, x};
    kolo_tensor_engine_t engine;
    if (kolo_engine_init(&engine, NULL, NULL) != KOLO_OK) return failed("init");
    for (int i = 0; i < 500; i++)
        if (kolo_engine_all_reduce(engine, &tensor, KOLO_SUM, 1, 1, NULL, &handle) != KOLO_OK ||
            kolo_engine_wait(engine, handle, 0, NULL) != KOLO_OK)
            return failed("all_reduce");
    return kolo_engine_shutdown(engine) == KOLO_OK ? 0 : failed("shutdown");
}

/* Tells whether all lines of a file have as many commas as the first, and there are more than two. */
static int check_table(const char *path)
{
    char line[512];
    int first = -1, lines = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        int commas = 0;
        for (const char *c = line; *c; c++) commas += *c == ',';
        if (first < 0) first = commas;
        if (commas != first)
            return fprintf(stderr, "%d commas, and %d in the first line: %s", commas, first, line), 1;
        lines++;
    }
    if (file) fclose(file);
    return lines > 2 ? 0 : (fprintf(stderr, "%s has %d lines\n", path, lines), 1);
}

static int turkish(void)
{
    if (!setlocale(LC_ALL, "tr_TR.UTF-8")) return SKIP;
    setenv("KOLO_LOG", "INFO", 1);
    setenv("KOLO_LOG_FILE", "/dev/null", 1);
    return run_engine();
}

static int german(const char *dir)
{
    char path[256];
    if (!setlocale(LC_ALL, "de_DE.UTF-8")) return SKIP;
    snprintf(path, sizeof path, "%s/autotune.csv", dir);
    setenv("KOLO_AUTOTUNE", "1", 1);
    setenv("KOLO_AUTOTUNE_LOG", path, 1);
    setenv("KOLO_AUTOTUNE_SETTINGS", "2", 1);
    int result = run_engine();
    return result ? result : check_table(path);
}

static void make(const char *dir, const char *name)
{
    char command[400];
    snprintf(command, sizeof command, "localedef -i %s -f UTF-8 %s/%s.UTF-8 > /dev/null 2>&1", name, dir, name);
    if (system(command) == -1) perror("localedef");
}

int main(void)
{
    char dir[] = "/tmp/kolo-locale-XXXXXX", command[100];
    int result = 0, skipped = 0;
    if (!mkdtemp(dir)) return 1;
    make(dir, "tr_TR");
    make(dir, "de_DE");
    setenv("LOCPATH", dir, 1);
    for (int i = 0; i < 2; i++) {
        int status = 0;
        pid_t pid = fork();
        if (pid == 0) _exit(i ? german(dir) : turkish());
        if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return 1;
        if (WEXITSTATUS(status) == SKIP)
            skipped++;
        else
            result |= WEXITSTATUS(status);
    }
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command) != 0) result = 1;
    if (skipped) fprintf(stderr, "%d locale(s) cannot be made here (localedef)\n", skipped);
    return result ? result : skipped ? SKIP : 0;
}
