/* A plugin of qemu that counts the instructions executed between addresses: -plugin FILE,out=PATH,at=BEGIN,to=END,...
 * The few functions of qemu that it calls are declared here, since Debian's qemu comes without its header. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
extern void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *, int, void *, uint64_t);

enum { ADD = 0, MOST = 256 };
__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t executed, begins[MOST], ends[MOST];
static int ranges;
static char out[4096];

static void translated(plugin_id id, struct qemu_plugin_tb *block) {
  (void)id;
  for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); ++i) {
    struct qemu_plugin_insn *one = qemu_plugin_tb_get_insn(block, i);
    const uint64_t at = qemu_plugin_insn_vaddr(one);
    for (int r = 0; r < ranges; ++r)
      if (at >= begins[r] && at < ends[r]) {
        qemu_plugin_register_vcpu_insn_exec_inline(one, ADD, &executed, 1);
        break;
      }
  }
}

static void ended(plugin_id id, void *nothing) {
  (void)id, (void)nothing;
  FILE *file = fopen(out, "w");
  if (!file) return;
  fprintf(file, "%llu\n", (unsigned long long)executed);
  fclose(file);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int count, char **given) {
  (void)info;
  for (int i = 0; i < count; ++i) {
    if (!strncmp(given[i], "out=", 4) && strlen(given[i] + 4) < sizeof out) strcpy(out, given[i] + 4);
    if (!strncmp(given[i], "at=", 3) && ranges < MOST) begins[ranges] = strtoull(given[i] + 3, 0, 0);
    if (!strncmp(given[i], "to=", 3) && ranges < MOST) ends[ranges++] = strtoull(given[i] + 3, 0, 0);
  }
  if (!*out || !ranges) return 1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, ended, 0);
  return 0;
}
