"""Plans that a target cannot run are refused with the place and both numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.gpu import plans

from ptegpu.errors import DeviceError, LimitExceeded
from ptegpu.gpu import check
from ptegpu.plan.plan import Binding, Buffer, Copy
from ptegpu.plan.target import Target

BROWSER = Target()
PLAN = plans.add()


def kernel(**changes):
    return replace(PLAN, kernels=(replace(plans.ADD, **changes),))


def dispatch(**changes):
    return plans.dispatching(PLAN, replace(PLAN.dispatches[0], **changes))


def buffer(**changes):
    return replace(PLAN, buffers=(replace(PLAN.buffers[0], **changes), *PLAN.buffers[1:]))


def test_a_plan_within_the_limits_passes():
    check(PLAN, BROWSER)
    check(plans.scale((1.0, 2.0)), BROWSER)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (kernel(workgroup=257), "kernel add needs 257 invocations in a workgroup; generic allows 256"),
        (kernel(shared_bytes=16385), "kernel add needs 16385 bytes of workgroup memory; generic allows 16384"),
        (kernel(access=("read",) * 9), "kernel add needs 9 storage buffers; generic allows 8"),
        (kernel(access=("uniform",) * 13), "kernel add needs 13 uniform buffers; generic allows 12"),
        (kernel(needs=("f16",)), "kernel add needs f16, which generic does not have or was opened without"),
        (
            kernel(needs=("subgroups",)),
            "kernel add needs subgroups, which generic does not have or was opened without",
        ),
        (buffer(nbytes=268435472), "buffer a needs 268435472 bytes; generic allows 268435456"),
        (dispatch(grid=(65536, 1)), "y (add) needs 65536 workgroups in one dimension; generic allows 65535"),
        (dispatch(grid=(1, 65536)), "y (add) needs 65536 workgroups in one dimension; generic allows 65535"),
        (
            dispatch(bindings=(Binding(0, 0, 134217732), *plans.whole(1, 2))),
            "y (add): binding of a needs 134217732 bytes; generic allows 134217728",
        ),
    ],
)
def test_a_plan_beyond_a_limit(plan, message):
    with pytest.raises(LimitExceeded) as caught:
        check(plan, BROWSER)
    assert f"plan add: {message}" == str(caught.value)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (buffer(nbytes=84), "buffer a has 84 bytes, which is not a multiple of 16"),
        (
            replace(PLAN, buffers=(Buffer("a", 80, "constant", 0), *PLAN.buffers[1:]), blobs=(bytes(81),)),
            "buffer a has 80 bytes, its first contents 81",
        ),
        (dispatch(bindings=plans.whole(0, 1)), "y (add) binds 2 buffers, its kernel has 3"),
        (dispatch(bindings=plans.whole(0, 1, 0)), "y (add) binds a both to read and to write"),
        (
            dispatch(bindings=(Binding(0, 128, 16), *plans.whole(1, 2))),
            "y (add) cannot bind 16 bytes at 128 of a (80 bytes)",
        ),
        (
            dispatch(bindings=(Binding(0, 0, 96), *plans.whole(1, 2))),
            "y (add) cannot bind 96 bytes at 0 of a (80 bytes)",
        ),
        (
            replace(PLAN, buffers=(*PLAN.buffers[:2], Buffer("w", 80, "constant", 0)), blobs=(bytes(80),)),
            "y (add) writes the constant w",
        ),
        (
            replace(
                PLAN,
                buffers=(PLAN.buffers[0], Buffer("w", 80, "constant", 0), PLAN.buffers[2]),
                copies=(Copy(0, 1, 80),),
                blobs=(bytes(80),),
            ),
            "a is copied to the constant w",
        ),
        (replace(PLAN, copies=(Copy(0, 1, 6),)), "cannot copy 6 bytes from a to b"),
        (replace(PLAN, copies=(Copy(0, 1, 84),)), "cannot copy 84 bytes from a to b"),
        (replace(PLAN, copies=(Copy(0, 0, 16),)), "cannot copy 16 bytes from a to a"),
        (plans.giving(PLAN, plans.f32("y", 2, (21,))), "y has 84 bytes, its buffer 80"),
    ],
)
def test_a_plan_that_no_device_runs(plan, message):
    with pytest.raises(DeviceError) as caught:
        check(plan, BROWSER)
    assert f"plan add: {message}" == str(caught.value)


@pytest.mark.parametrize(
    ("preferred", "limit", "expected"), [(64, 256, 64), (512, 256, 256), (200, 256, 128), (1, 1, 1)]
)
def test_workgroups_adapt_to_the_target(preferred, limit, expected):
    assert expected == Target(max_invocations=limit).workgroup(preferred)
