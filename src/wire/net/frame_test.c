/* SPDX-License-Identifier: Apache-2.0 */
#include "base/test.h"
#include "wire/net/conn.h"

#include <stdlib.h>
#include <string.h>

static void a_tail_says_what_was_put_in(void **state)
{
    (void)state;
    uint8_t message[128] = {0};
    kolo_net_tail_t tail = {.bytes = 21,
                            .flags = 1,
                            .slot = 77,
                            .signature = 0x1234567890abcdefull,
                            .operation = 9},
                    got;
    uint32_t bytes = kolo_net_message_bytes(21);
    assert_int_equal(bytes, 24 + KOLO_NET_TAIL_BYTES);
    kolo_net_tail_encode(&tail, message + 24);
    assert_int_equal(kolo_net_tail_decode(message, bytes, 77, 64, &got), KOLO_OK);
    assert_memory_equal(&tail, &got, sizeof got);
    assert_int_equal(kolo_net_message_bytes(0), KOLO_NET_TAIL_BYTES);
    assert_true(kolo_net_message_bytes(64) <= 64 + KOLO_NET_SLOT_EXTRA);
}

static void a_tail_that_lies_is_refused(void **state)
{
    (void)state;
    uint8_t message[256] = {0};
    kolo_net_tail_t tail = {.bytes = 16, .slot = 5}, got;
    kolo_net_tail_encode(&tail, message + 16);
    assert_int_equal(kolo_net_tail_decode(message, 48, 5, 64, &got), KOLO_OK);
    assert_int_equal(kolo_net_tail_decode(message, 48, 6, 64, &got), KOLO_ERR_PROTOCOL); /* another slot is due */
    assert_int_equal(kolo_net_tail_decode(message, 31, 5, 64, &got), KOLO_ERR_PROTOCOL);
    assert_int_equal(kolo_net_tail_decode(message, 0, 5, 64, &got), KOLO_ERR_PROTOCOL);
    for (uint32_t bytes = 0; bytes < 200; bytes++) { /* only a length that the message has */
        tail.bytes = bytes;
        kolo_net_tail_encode(&tail, message + 16);
        assert_int_equal(kolo_net_tail_decode(message, 48, 5, 64, &got),
                         bytes > 8 && bytes <= 16 ? KOLO_OK : KOLO_ERR_PROTOCOL);
    }
    tail.bytes = 128; /* longer than a slot */
    kolo_net_tail_encode(&tail, message + 128);
    assert_int_equal(kolo_net_tail_decode(message, 160, 5, 64, &got), KOLO_ERR_PROTOCOL);
}

static void a_tail_without_its_payload_must_be_for_the_place(void **state)
{
    (void)state;
    uint8_t message[KOLO_NET_TAIL_BYTES];
    kolo_net_tail_t tail = {.bytes = 4096, .flags = KOLO_NET_PLACED, .slot = 5}, got;
    kolo_net_tail_encode(&tail, message);
    assert_true(kolo_net_tail_is_placed(message, sizeof message));
    assert_int_equal(kolo_net_tail_decode_placed(message, sizeof message, 5, 4096, &got), KOLO_OK);
    assert_int_equal(got.flags, 0); /* the mark is the wire's own */
    assert_int_equal(kolo_net_tail_decode_placed(message, sizeof message, 6, 4096, &got), KOLO_ERR_PROTOCOL);
    assert_int_equal(kolo_net_tail_decode_placed(message, sizeof message, 5, 4097, &got), KOLO_ERR_PROTOCOL);
    assert_int_equal(kolo_net_tail_decode_placed(message, sizeof message, 5, 0, &got), KOLO_ERR_PROTOCOL);
    assert_int_equal(kolo_net_tail_decode(message, sizeof message, 5, 8192, &got), KOLO_ERR_PROTOCOL);
    tail.flags = KOLO_NET_PASSED;
    tail.bytes = 0;
    kolo_net_tail_encode(&tail, message);
    assert_true(kolo_net_tail_is_passed(message, sizeof message, 5));
    assert_false(kolo_net_tail_is_passed(message, sizeof message, 6));
    tail.flags = 0;
    kolo_net_tail_encode(&tail, message);
    assert_false(kolo_net_tail_is_passed(message, sizeof message, 5));
    assert_false(kolo_net_tail_is_placed(message, sizeof message));
}

static void a_note_is_told_from_noise(void **state)
{
    (void)state;
    uint8_t bytes[KOLO_NET_NOTE_BYTES];
    for (int kind = 0; kind < KOLO_NET_NOTES; kind++) {
        kolo_net_note_t note = {.kind = (kolo_net_note_kind_t)kind, .rail = 3, .value = UINT64_MAX - 3}, got;
        memset(&note.hello, kind, sizeof note.hello);
        kolo_net_note_encode(&note, bytes);
        assert_true(kolo_net_note_decode(bytes, &got));
        assert_memory_equal(&note, &got, sizeof got);
        for (int i = 1; i < 8; i++) { /* kinds, but for their lowest byte, and rails */
            bytes[i] ^= 0x84;
            assert_false(kolo_net_note_decode(bytes, &got));
            bytes[i] ^= 0x84;
        }
        bytes[0] = (uint8_t)KOLO_NET_NOTES;
        assert_false(kolo_net_note_decode(bytes, &got));
    }
}

static void a_card_of_another_connection_is_refused(void **state)
{
    (void)state;
    kolo_net_card_t card = {.provider = 1, .depth = 8, .slot_bytes = 4096, .nonce = 0xfeedull, .nrails = 2}, got;
    kolo_wire_card_t wire;
    memset(card.hellos, 0x5a, sizeof card.hellos);
    kolo_net_card_encode(&card, &wire);
    assert_int_equal(kolo_net_card_decode(&wire, &card, 3, &got), KOLO_OK);
    assert_true(got.nonce == card.nonce);
    assert_memory_equal(got.hellos, card.hellos, sizeof got.hellos);
    assert_int_equal(got.nrails, 2);
    for (uint32_t n = 0; n <= KOLO_NET_MAX_RAILS + 1; n++) {
        kolo_net_card_t many = card;
        many.nrails = n;
        kolo_net_card_encode(&many, &wire);
        assert_int_equal(kolo_net_card_decode(&wire, &card, 3, &got),
                         n >= 1 && n <= KOLO_NET_MAX_RAILS ? KOLO_OK : KOLO_ERR_PROTOCOL);
    }
    kolo_net_card_encode(&card, &wire);
    kolo_net_card_t other = card;
    other.provider = 2;
    assert_int_equal(kolo_net_card_decode(&wire, &other, 3, &got), KOLO_ERR_MISMATCH);
    other = card;
    other.depth = 16;
    assert_int_equal(kolo_net_card_decode(&wire, &other, 3, &got), KOLO_ERR_PROTOCOL);
    other = card;
    other.slot_bytes = 64;
    assert_int_equal(kolo_net_card_decode(&wire, &other, 3, &got), KOLO_ERR_PROTOCOL);
    for (size_t i = 0; i < 24; i++) { /* magic, version, provider, depth, slot size, what must be zero */
        wire.bytes[i] ^= 0x10;
        assert_int_not_equal(kolo_net_card_decode(&wire, &card, 3, &got), KOLO_OK);
        assert_non_null(strstr(kolo_error_text(), "rank 3"));
        wire.bytes[i] ^= 0x10;
    }
}

/* Each bit of a card: refused, or what comes out says what went in. */
static void a_damaged_card_is_refused_or_taken_at_its_word(void **state)
{
    (void)state;
    enum { FLAGS = 20, NONCE = 24, RAILS = 32, RESERVED = 36, HELLOS = 40 };
    kolo_net_card_t card = {.provider = 0xabcdef12,
                            .depth = 8,
                            .slot_bytes = 4096,
                            .nonce = 0xfeedull,
                            .nrails = 2},
                    got;
    kolo_wire_card_t wire, again;
    memset(card.hellos, 0x5a, sizeof card.hellos);
    kolo_net_card_encode(&card, &wire);
    for (size_t bit = 0; bit < 8 * (size_t)wire.length; bit++) {
        size_t at = bit / 8;
        bool free_to_say = at >= HELLOS || (at >= NONCE && at < RAILS);
        wire.bytes[at] ^= (uint8_t)(1u << bit % 8);
        kolo_status_t status = kolo_net_card_decode(&wire, &card, 3, &got);
        if (free_to_say) assert_int_equal(status, KOLO_OK);
        if (at < FLAGS || (at > FLAGS && at < NONCE) || (at >= RESERVED && at < HELLOS))
            assert_int_not_equal(status, KOLO_OK);
        if (status == KOLO_OK) {
            kolo_net_card_encode(&got, &again);
            assert_memory_equal(&again, &wire, sizeof wire);
        }
        wire.bytes[at] ^= (uint8_t)(1u << bit % 8);
    }
    for (uint32_t length = 0; length < wire.length; length++) {
        again = wire;
        again.length = (typeof(again.length))length;
        assert_int_equal(kolo_net_card_decode(&again, &card, 3, &got), KOLO_ERR_PROTOCOL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tail_says_what_was_put_in),
        cmocka_unit_test(a_tail_that_lies_is_refused),
        cmocka_unit_test(a_tail_without_its_payload_must_be_for_the_place),
        cmocka_unit_test(a_note_is_told_from_noise),
        cmocka_unit_test(a_card_of_another_connection_is_refused),
        cmocka_unit_test(a_damaged_card_is_refused_or_taken_at_its_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
