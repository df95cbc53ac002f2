/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only, for the libraries of NVIDIA's driver that have to be there but that nothing in
 * the laboratory calls (libnvidia-ptxjitcompiler, libnvidia-nvvm, libnvidia-gpucomp, libcudadebugger).
 */
#ifndef RACKWELL_LAB_DRIVER_VERSION
#error "compile with -DRACKWELL_LAB_DRIVER_VERSION=\"595.58.03\""
#endif

extern const char rackwell_lab_stand_in[];
__attribute__((visibility("default"))) const char rackwell_lab_stand_in[] =
    "stand-in of the rackwell laboratory, driver version " RACKWELL_LAB_DRIVER_VERSION;
