/* SPDX-License-Identifier: Apache-2.0
 *
 * What a tool prints has arrived, or the tool has failed: scripts look at the exit status alone.
 */
#ifndef KOLO_TOOLS_OUTPUT_H
#define KOLO_TOOLS_OUTPUT_H

/* First in main(). If something printed to stdout could not be written, exit() says so on stderr and turns a status
 * of 0 into 1. */
void kolo_tool_output(const char *tool);
/* The one of these names that is most like `word`; NULL: none is. */
const char *kolo_tool_nearest(const char *const *names, int count, const char *word);
/* After getopt_long() has refused `word`: prints which option it is most like, if any is. */
struct option;
void kolo_tool_suggest(const struct option *options, const char *word);

#endif
