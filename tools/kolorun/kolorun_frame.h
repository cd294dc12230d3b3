/* SPDX-License-Identifier: Apache-2.0
 *
 * What kolorun and its agents say to each other (an agent starts the ranks of one host, see kolorun_host.h). Over
 * the agent's standard input and output, so that an ssh carries it as it is: 12 bytes of header, then the payload,
 * all numbers little-endian. Everything that comes from the other side is bounded and checked here.
 *
 *     to the agent:    START id spec, INPUT id bytes, SIGNAL id number, PAUSE stream on, FILE name content, BEAT
 *     from the agent:  HELLO pid, STARTED id pid, NOT_STARTED id errno, TOOK id number, OUT / ERR id bytes,
 *                      ENDED id status, FILE name content, TROUBLE text
 */
#ifndef KOLO_TOOLS_KOLORUN_FRAME_H
#define KOLO_TOOLS_KOLORUN_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    KOLORUN_START = 1,
    KOLORUN_SIGNAL,
    KOLORUN_PAUSE, /* id 1: stdout, 2: stderr; number 1: do not read it from the ranks, 0: go on */
    KOLORUN_FILE,  /* a file for the directory of the id, as a text "name" with its NUL, then the content */
    KOLORUN_BEAT,  /* the driver lives; an agent that has heard one wants to hear more */
    KOLORUN_INPUT, /* for the standard input of a process that was started with one; no bytes: its end */
    KOLORUN_HELLO,
    KOLORUN_STARTED,
    KOLORUN_NOT_STARTED,
    KOLORUN_TOOK, /* how many bytes of INPUT were written to the process; -1: it reads no more */
    KOLORUN_OUT,
    KOLORUN_ERR,
    KOLORUN_ENDED,  /* the status of waitpid */
    KOLORUN_TROUBLE /* the agent cannot go on: a sentence */
} kolorun_frame_type_t;

#define KOLORUN_FRAME_HEADER  12u
#define KOLORUN_FRAME_MAX     (8u << 20) /* payload: arguments and environment of a program fit */
#define KOLORUN_FILE_NAME_MAX 64u
#define KOLORUN_FILE_MAX      65536u
#define KOLORUN_ERROR_DIR     0x10000 /* in the error of NOT_STARTED: it was the working directory */
#define KOLORUN_ALL           (-1)    /* SIGNAL: the whole process group, children of the ranks included */
#define KOLORUN_INPUT_WINDOW  262144u /* of INPUT for a process, sent and not taken */

/* The agent's first bytes, so that what a login script prints before can be told from it. */
#define KOLORUN_AGENT_MAGIC "\nkolorun-agent 2\n"

typedef struct {
    kolorun_frame_type_t type;
    int32_t id;
    const uint8_t *data; /* inside the caller's buffer */
    uint32_t bytes;
} kolorun_frame_t;

/* Looks at the first frame in buf. Returns its whole size, 0 when it is not complete yet, -1 when this is no
 * frame. */
int64_t kolorun_frame_parse(const uint8_t *buf, size_t bytes, kolorun_frame_t *frame);
void kolorun_frame_header(uint8_t header[KOLORUN_FRAME_HEADER], kolorun_frame_type_t type, int32_t id,
                          uint32_t bytes);
void kolorun_put_i32(uint8_t *at, int32_t value);
/* false: the payload is not just a number. */
bool kolorun_frame_number(const kolorun_frame_t *frame, int32_t *value);

/* A program to start. */
typedef struct {
    const char *dir; /* working directory; "" or NULL: the agent's */
    char **argv;     /* NULL at its end */
    char **env;      /* K=V texts, NULL at its end; on top of the agent's environment */
    bool input;      /* its standard input is what INPUT brings; else it is empty */
} kolorun_spec_t;

/* The payload of START, from malloc; NULL: too large, or no memory. */
uint8_t *kolorun_spec_encode(const kolorun_spec_t *spec, uint32_t *bytes);
/* The texts lie inside data; the two lists are from malloc (free spec->argv; env is part of it). */
bool kolorun_spec_decode(const uint8_t *data, size_t bytes, kolorun_spec_t *spec);

/* The payload of FILE: a plain name (letters, digits, '.', '_', '-', not starting with '.') and what follows it. */
bool kolorun_file_decode(const kolorun_frame_t *frame, const char **name, const uint8_t **content, size_t *bytes);
bool kolorun_file_name_ok(const char *name);

#endif
