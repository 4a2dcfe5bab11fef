"""Sabotages of KV that a device writes into another process's memory."""

from tests.mutants.mutant import Mutant

DEVICES = (
    Mutant(
        "a header leaves before the device has copied",
        "transfer/moving.py",
        " and self._frames[0].moving.done else None",
        " else None",
        "decode is told of KV that is not there yet",
        (),
        ("tests/transfer/test_device_pools.py",),
    ),
    Mutant(
        "an end does not wait for the device",
        "transfer/moving.py",
        "            ended[-1].moving.wait()\n",
        "            pass\n",
        "a late copy reaches the KV of the next request",
        (),
        ("tests/transfer/test_device_pools.py",),
    ),
    Mutant(
        "what a device has written is not looked at",
        "transfer/landing.py",
        "        if seal_sum(header, done.reading.total) == header:\n",
        "        if True:\n",
        "a byte that turned is decoded",
        (),
        ("tests/transfer/test_device_pools.py",),
    ),
    Mutant(
        "a checksum of the other kind is taken for the right one",
        "transfer/landing.py",
        "        if header.check != Check.DEVICE_SUM:\n",
        "        if False:\n",
        "what went wrong is not named",
        (),
        ("tests/transfer/test_device_pools.py",),
    ),
    Mutant(
        "a device is believed to be let go with the seat",
        "transfer/writers.py",
        " or (writer.process > 0 and self._is_ending(writer.process))\n",
        "\n",
        "the last copy of a worker that was killed reaches the KV of the next request",
        (),
        ("tests/transfer/test_writers.py",),
    ),
    Mutant(
        "the twin in host memory is staged in over what a device has written",
        "decode/worker.py",
        "        if not on_device:\n",
        "        if True:\n",
        "decode reads what was never written",
        (),
        ("tests/handoff/test_hash_model.py",),
    ),
)
