/* A version-1 peer in C, written from the offsets of the specification alone: packed structs on a little-endian
 * machine, and nothing else. `peer emit` writes one frame of every message to standard output; `peer parse` reads
 * frames from standard input and prints their fields, one per line. test_fdtc_c_peer.py compares both with fdtc. */

#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "version 1 is what a little-endian machine writes"
#endif

#define MAGIC 0x46445443u
#define MAX_MESSAGE 268435456u

#pragma pack(push, 1)
struct header { uint32_t magic; uint8_t type; uint32_t length; };

struct registration {
    char worker_id[64];
    uint8_t protocol_version;
    uint32_t profile;
    uint32_t num_cores;
    uint64_t memory_mb;
    uint32_t suggested_batch_size;
};

struct register_ack {
    uint8_t accepted;
    uint32_t assigned_shard;
    uint32_t total_shards;
    uint32_t batch_size;
    uint32_t accumulation_steps;
    uint32_t compression;
    float topk_ratio;
    uint32_t global_step;
};

struct deregister { char worker_id[64]; };

struct heartbeat { char worker_id[64]; uint32_t local_step; float current_loss; float samples_per_sec; };

struct weights_meta { uint32_t num_tensors; uint32_t global_step; float learning_rate; };

struct tensor { char name[64]; uint32_t ndim; uint64_t shape[8]; uint64_t numel; uint8_t dtype; };

struct gradients {
    char worker_id[64];
    uint32_t local_step;
    uint32_t num_tensors;
    uint32_t compression;
    uint32_t uncompressed_size;
};

struct status {
    char worker_id[64];
    uint32_t local_step;
    uint32_t samples_processed;
    float current_loss;
    float avg_loss;
    float samples_per_sec;
    uint64_t memory_used_mb;
    uint8_t is_training;
};

struct error { uint32_t error_code; char message[256]; };
#pragma pack(pop)

#define AT(type, field, offset) _Static_assert(offsetof(struct type, field) == offset, #type "." #field)
#define SIZE(type, size) _Static_assert(sizeof(struct type) == size, "size of " #type)

AT(header, magic, 0); AT(header, type, 4); AT(header, length, 5); SIZE(header, 9);
AT(registration, worker_id, 0); AT(registration, protocol_version, 64); AT(registration, profile, 65);
AT(registration, num_cores, 69); AT(registration, memory_mb, 73); AT(registration, suggested_batch_size, 81);
SIZE(registration, 85);
AT(register_ack, accepted, 0); AT(register_ack, assigned_shard, 1); AT(register_ack, total_shards, 5);
AT(register_ack, batch_size, 9); AT(register_ack, accumulation_steps, 13); AT(register_ack, compression, 17);
AT(register_ack, topk_ratio, 21); AT(register_ack, global_step, 25); SIZE(register_ack, 29);
SIZE(deregister, 64);
AT(heartbeat, local_step, 64); AT(heartbeat, current_loss, 68); AT(heartbeat, samples_per_sec, 72);
SIZE(heartbeat, 76);
AT(weights_meta, num_tensors, 0); AT(weights_meta, global_step, 4); AT(weights_meta, learning_rate, 8);
SIZE(weights_meta, 12);
AT(tensor, name, 0); AT(tensor, ndim, 64); AT(tensor, shape, 68); AT(tensor, numel, 132); AT(tensor, dtype, 140);
SIZE(tensor, 141);
AT(gradients, local_step, 64); AT(gradients, num_tensors, 68); AT(gradients, compression, 72);
AT(gradients, uncompressed_size, 76); SIZE(gradients, 80);
AT(status, local_step, 64); AT(status, samples_processed, 68); AT(status, current_loss, 72);
AT(status, avg_loss, 76); AT(status, samples_per_sec, 80); AT(status, memory_used_mb, 84);
AT(status, is_training, 92); SIZE(status, 93);
AT(error, error_code, 0); AT(error, message, 4); SIZE(error, 260);

static const uint8_t EMPTY[] = {0x11, 0x20, 0x31, 0x40, 0x45, 0x46, 0x47, 0x48, 0x49, 0x50};

static void die(const char *why) {
    fprintf(stderr, "peer: %s\n", why);
    exit(1);
}

static void put(const void *data, size_t size) {
    if (size && fwrite(data, size, 1, stdout) != 1) die("cannot write");
}

static void frame(uint8_t type, const void *head, size_t head_size, const void *tail, size_t tail_size) {
    struct header header = {MAGIC, type, (uint32_t)(head_size + tail_size)};
    put(&header, sizeof header);
    put(head, head_size);
    put(tail, tail_size);
}

static void emit(void) {
    const float numbers[7] = {1, -2, 0.5f, -0.5f, 2, 0, -8};
    struct registration registration = {"c-peer", 1, 3, 4, 7811, 8};
    struct register_ack ack = {1, 2, 17, 8, 4, 2, 0.1f, 4000000000u};
    struct deregister deregister = {"c-peer"};
    struct heartbeat heartbeat = {"c-peer", 77, 3.25f, 12.5f};
    struct { struct weights_meta head; struct tensor tensors[2]; } __attribute__((packed)) meta = {
        {2, 4000000000u, 1e-4f},
        {{"emb.weight", 2, {2, 3}, 6, 0}, {"scale", 0, {0}, 1, 0}}};
    struct gradients gradients = {"c-peer", 77, 2, 0, sizeof numbers};
    struct status status = {"c-peer", 77, 616, 3.25f, 3.5f, 12.5f, 6000000000u, 1};
    struct error error = {5, "W\xc3\xb6rter"};

    frame(0x01, &registration, sizeof registration, NULL, 0);
    frame(0x02, &ack, sizeof ack, NULL, 0);
    frame(0x03, &deregister, sizeof deregister, NULL, 0);
    frame(0x10, &heartbeat, sizeof heartbeat, NULL, 0);
    frame(0x22, &meta, sizeof meta, NULL, 0);
    frame(0x21, NULL, 0, numbers, sizeof numbers);
    frame(0x30, &gradients, sizeof gradients, numbers, sizeof numbers);
    frame(0x51, &status, sizeof status, NULL, 0);
    frame(0xff, &error, sizeof error, NULL, 0);
    for (size_t i = 0; i < sizeof EMPTY; i++) frame(EMPTY[i], NULL, 0, NULL, 0);
}

#define UNSIGNED(name, value) printf("%s %" PRIu64 "\n", name, (uint64_t)(value))
#define FLOAT(name, value) printf("%s %.9g\n", name, (double)(value))
#define TEXT(name, field) printf("%s %.*s\n", name, (int)strnlen(field, sizeof field), field)

static void print_floats(const uint8_t *data, size_t size) {
    printf("data");
    for (size_t i = 0; i + sizeof(float) <= size; i += sizeof(float)) {
        float value;
        memcpy(&value, data + i, sizeof value);
        printf(" %.9g", (double)value);
    }
    printf("\n");
}

static void print_tensor(const struct tensor *t) {
    TEXT("name", t->name);
    UNSIGNED("ndim", t->ndim);
    for (int i = 0; i < 8; i++) UNSIGNED("shape", t->shape[i]);
    UNSIGNED("numel", t->numel);
    UNSIGNED("dtype", t->dtype);
}

static void print_payload(uint8_t type, const uint8_t *payload, uint32_t length) {
    const void *p = payload;
    if (type == 0x01) {
        const struct registration *m = p;
        TEXT("worker_id", m->worker_id);
        UNSIGNED("protocol_version", m->protocol_version);
        UNSIGNED("profile", m->profile);
        UNSIGNED("num_cores", m->num_cores);
        UNSIGNED("memory_mb", m->memory_mb);
        UNSIGNED("suggested_batch_size", m->suggested_batch_size);
    } else if (type == 0x02) {
        const struct register_ack *m = p;
        UNSIGNED("accepted", m->accepted);
        UNSIGNED("assigned_shard", m->assigned_shard);
        UNSIGNED("total_shards", m->total_shards);
        UNSIGNED("batch_size", m->batch_size);
        UNSIGNED("accumulation_steps", m->accumulation_steps);
        UNSIGNED("compression", m->compression);
        FLOAT("topk_ratio", m->topk_ratio);
        UNSIGNED("global_step", m->global_step);
    } else if (type == 0x03) {
        const struct deregister *m = p;
        TEXT("worker_id", m->worker_id);
    } else if (type == 0x10) {
        const struct heartbeat *m = p;
        TEXT("worker_id", m->worker_id);
        UNSIGNED("local_step", m->local_step);
        FLOAT("current_loss", m->current_loss);
        FLOAT("samples_per_sec", m->samples_per_sec);
    } else if (type == 0x21) {
        print_floats(payload, length);
    } else if (type == 0x22) {
        const struct weights_meta *m = p;
        UNSIGNED("num_tensors", m->num_tensors);
        UNSIGNED("global_step", m->global_step);
        FLOAT("learning_rate", m->learning_rate);
        for (size_t at = sizeof *m; at + sizeof(struct tensor) <= length; at += sizeof(struct tensor))
            print_tensor((const void *)(payload + at));
    } else if (type == 0x30) {
        const struct gradients *m = p;
        TEXT("worker_id", m->worker_id);
        UNSIGNED("local_step", m->local_step);
        UNSIGNED("num_tensors", m->num_tensors);
        UNSIGNED("compression", m->compression);
        UNSIGNED("uncompressed_size", m->uncompressed_size);
        print_floats(payload + sizeof *m, length - sizeof *m);
    } else if (type == 0x51) {
        const struct status *m = p;
        TEXT("worker_id", m->worker_id);
        UNSIGNED("local_step", m->local_step);
        UNSIGNED("samples_processed", m->samples_processed);
        FLOAT("current_loss", m->current_loss);
        FLOAT("avg_loss", m->avg_loss);
        FLOAT("samples_per_sec", m->samples_per_sec);
        UNSIGNED("memory_used_mb", m->memory_used_mb);
        UNSIGNED("is_training", m->is_training);
    } else if (type == 0xff) {
        const struct error *m = p;
        UNSIGNED("code", m->error_code);
        TEXT("message", m->message);
    } else if (length != 0) {
        die("a payload where none is due");
    }
}

static void parse(void) {
    struct header header;
    while (fread(&header, sizeof header, 1, stdin) == 1) {
        if (header.magic != MAGIC || header.length > MAX_MESSAGE) die("not a frame");
        uint8_t *payload = malloc(header.length + 1u);
        if (!payload || (header.length && fread(payload, header.length, 1, stdin) != 1)) die("cut short");
        printf("type 0x%02x\n", header.type);
        print_payload(header.type, payload, header.length);
        free(payload);
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "emit")) emit();
    else if (argc == 2 && !strcmp(argv[1], "parse")) parse();
    else die("usage: peer emit|parse");
    return 0;
}
