// SPDX-License-Identifier: Apache-2.0
/*
 * The entry points that the loader asks a driver for: it opens none that lacks one of them. Tables come filled with zeros,
 * and the loader refuses calls whose place stays zero.
 */
#include <initializer_list>

#include "api.h"

namespace tensorferry::xpu::simulator {
namespace {

/** A function and its place in a table of the interface's version 1. */
struct Place {
  size_t index;
  void* function;
};

template <typename Function>
Place at(size_t index, const ze::Entry<Function>& entry) {
  return {index, reinterpret_cast<void*>(entry.function)};
}

ze::Result fillTable(uint32_t version, void* table, std::initializer_list<Place> places) {
  if (table == nullptr) return ze::code::invalidNullPointer;
  if (version >> 16 != 1) return ze::code::unsupportedVersion;
  for (const Place& place : places) static_cast<void**>(table)[place.index] = place.function;
  return ze::code::success;
}

}  // namespace
}  // namespace tensorferry::xpu::simulator

using namespace tensorferry::xpu;
using namespace tensorferry::xpu::simulator;

#define TENSORFERRY_TABLE(name, ...)                                                                 \
  extern "C" __attribute__((visibility("default"))) ze::Result name(uint32_t version, void* table) { \
    return fillTable(version, table, {__VA_ARGS__});                                                 \
  }

TENSORFERRY_TABLE(zeGetGlobalProcAddrTable, at(0, initialiseEntry))
TENSORFERRY_TABLE(zeGetDriverProcAddrTable, at(0, driversEntry), at(1, driverApiVersionEntry),
                  at(2, driverPropertiesEntry), at(5, extensionFunctionEntry))
TENSORFERRY_TABLE(zeGetDeviceProcAddrTable, at(0, devicesEntry), at(2, devicePropertiesEntry), at(5, queueGroupsEntry),
                  at(6, memoryPropertiesEntry))
TENSORFERRY_TABLE(zeGetContextProcAddrTable, at(0, createContextEntry), at(1, destroyContextEntry))
TENSORFERRY_TABLE(zeGetCommandListProcAddrTable, at(1, createListEntry), at(2, destroyListEntry), at(6, barrierEntry),
                  at(8, copyEntry), at(9, fillEntry), at(10, copyRegionEntry))
TENSORFERRY_TABLE(zeGetEventPoolProcAddrTable, at(0, createPoolEntry), at(1, destroyPoolEntry))
TENSORFERRY_TABLE(zeGetEventProcAddrTable, at(0, createEventEntry), at(1, destroyEventEntry), at(2, signalEventEntry),
                  at(3, waitEventEntry), at(4, queryEventEntry), at(5, resetEventEntry), at(6, eventTimesEntry))
TENSORFERRY_TABLE(zeGetMemProcAddrTable, at(1, allocateDeviceEntry), at(2, allocateHostEntry), at(3, freeEntry))

// Not simulated; the loader needs them all the same.
TENSORFERRY_TABLE(zeGetCommandQueueProcAddrTable)
TENSORFERRY_TABLE(zeGetFenceProcAddrTable)
TENSORFERRY_TABLE(zeGetImageProcAddrTable)
TENSORFERRY_TABLE(zeGetKernelProcAddrTable)
TENSORFERRY_TABLE(zeGetModuleProcAddrTable)
TENSORFERRY_TABLE(zeGetModuleBuildLogProcAddrTable)
TENSORFERRY_TABLE(zeGetPhysicalMemProcAddrTable)
TENSORFERRY_TABLE(zeGetSamplerProcAddrTable)
TENSORFERRY_TABLE(zeGetVirtualMemProcAddrTable)
TENSORFERRY_TABLE(zetGetDeviceProcAddrTable)
TENSORFERRY_TABLE(zetGetContextProcAddrTable)
TENSORFERRY_TABLE(zetGetCommandListProcAddrTable)
TENSORFERRY_TABLE(zetGetModuleProcAddrTable)
TENSORFERRY_TABLE(zetGetKernelProcAddrTable)
TENSORFERRY_TABLE(zetGetMetricGroupProcAddrTable)
TENSORFERRY_TABLE(zetGetMetricProcAddrTable)
TENSORFERRY_TABLE(zetGetMetricStreamerProcAddrTable)
TENSORFERRY_TABLE(zetGetMetricQueryPoolProcAddrTable)
TENSORFERRY_TABLE(zetGetMetricQueryProcAddrTable)
TENSORFERRY_TABLE(zetGetTracerExpProcAddrTable)
TENSORFERRY_TABLE(zetGetDebugProcAddrTable)
TENSORFERRY_TABLE(zesGetDeviceProcAddrTable)
TENSORFERRY_TABLE(zesGetDriverProcAddrTable)
TENSORFERRY_TABLE(zesGetDiagnosticsProcAddrTable)
TENSORFERRY_TABLE(zesGetEngineProcAddrTable)
TENSORFERRY_TABLE(zesGetFabricPortProcAddrTable)
TENSORFERRY_TABLE(zesGetFanProcAddrTable)
TENSORFERRY_TABLE(zesGetFirmwareProcAddrTable)
TENSORFERRY_TABLE(zesGetFrequencyProcAddrTable)
TENSORFERRY_TABLE(zesGetLedProcAddrTable)
TENSORFERRY_TABLE(zesGetMemoryProcAddrTable)
TENSORFERRY_TABLE(zesGetPerformanceFactorProcAddrTable)
TENSORFERRY_TABLE(zesGetPowerProcAddrTable)
TENSORFERRY_TABLE(zesGetPsuProcAddrTable)
TENSORFERRY_TABLE(zesGetRasProcAddrTable)
TENSORFERRY_TABLE(zesGetSchedulerProcAddrTable)
TENSORFERRY_TABLE(zesGetStandbyProcAddrTable)
TENSORFERRY_TABLE(zesGetTemperatureProcAddrTable)
